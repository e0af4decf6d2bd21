"""How far a warm table is believed: its probabilities count as far as the text's tokens were among its predictions."""

import pytest
import torch
from rowarrays import memory_of, place, predicted, write

from lade.memory.backoff import backoff
from lade.memory.coverage import COVERAGE, SHARE
from lade.memory.pools import fresh_pool
from lade.memory.row import COVER
from lade.memory.rowmemory import RowMemory
from lade.memory.stages import WARM
from lade.memory.warmtable import WarmContexts, WarmTable

POOL = fresh_pool()
SAID = [5, 6], [0.6, 0.3]
CLAIMED = sum(SAID[1])


def memory_with(text: list[int]) -> RowMemory:
    """Its warm table makes the same predictions after every token below 8."""
    tokens, probabilities = torch.tensor([SAID[0]] * 8, dtype=torch.int32), torch.tensor([SAID[1]] * 8)
    none = WarmContexts(torch.zeros(0, 4, dtype=torch.int32), tokens[:0], probabilities[:0])
    return memory_of(text, warm=backoff(WarmTable(tokens, probabilities, none, 0.0), 1.0), pool=POOL)


def share_of(memory: RowMemory) -> float:
    return float(memory.row().floats[COVER + SHARE])


def expected(memory: RowMemory) -> tuple[list[int], list[float]]:
    return predicted(memory, WARM, place(memory))[1:]


def test_predictions_that_do_not_come_true_count_less_and_less() -> None:
    memory, shares = memory_with([7]), []
    for _ in range(8):
        write(memory, [7])
        shares.append(share_of(memory))
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.1
    write(memory, [7] * 10)
    assert expected(memory) == ([], [])
    write(memory, [6] * 100)
    assert share_of(memory) == 1
    assert expected(memory) == (SAID[0], pytest.approx(SAID[1]))


def test_as_many_tokens_as_claimed_leave_the_predictions_as_they_are() -> None:
    memory = memory_with([7])
    for token in [5, 6, 5, 7, 5, 6, 7, 5] * 5:
        write(memory, [token])
        assert share_of(memory) == 1
        assert memory.suffices


def test_below_enough_the_square_of_the_ratio_counts() -> None:
    memory = memory_with([7])
    write(memory, [7] * 3)
    share = (COVERAGE.prior / (COVERAGE.prior + 3 * CLAIMED) / COVERAGE.enough) ** 2
    assert COVERAGE.least < share < 1
    assert share_of(memory) == pytest.approx(share)
    assert expected(memory) == (SAID[0], pytest.approx([share * each for each in SAID[1]]))
    assert not memory.suffices


def test_the_end_of_the_prompt_counts_less() -> None:
    """Tokens before it do not count."""
    memory = memory_with([*[5] * 50, *[7] * COVERAGE.places])
    claimed = COVERAGE.prior + COVERAGE.prompt * COVERAGE.places * CLAIMED
    assert share_of(memory) == pytest.approx((COVERAGE.prior / claimed / COVERAGE.enough) ** 2)
