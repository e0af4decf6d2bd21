"""What the host reads of a forward: the same by machine code as by numpy and torch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from families import BY_NAME
from tiny import tiny_model, words

import lade
from lade.base.compiled import trial, viewed
from lade.core.readout import READ_ROWS
from lade.target.outputs import Outputs

pytestmark = pytest.mark.usefixtures("as_python")

LINES = [{0: 0, 2: 1}, {0: 2}, {0: 3, 1: 4, 5: 5}]


@contextmanager
def counted() -> Iterator[list[int]]:
    """The rows of each pass of machine code, for which the function as Python stands in."""
    passes: list[int] = []

    def run(*arguments: object) -> None:
        passes.append(len(arguments[11]))  # type: ignore[arg-type]
        READ_ROWS.python(*map(viewed, arguments))

    with trial({READ_ROWS: run}):
        yield passes


def outputs(precision: torch.dtype, vocabulary: int | None = None, nan: Sequence[int] = ()) -> Outputs:
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(3))
    logits[list(nan), 7] = torch.nan
    return Outputs(logits.to(precision), LINES, [1.0, 2.0, 1.0], vocabulary)


@pytest.mark.parametrize("nan", [(), (1,), (2, 4)])
@pytest.mark.parametrize("vocabulary", [None, 33, 5])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_machine_code_reads_what_torch_does(
    precision: torch.dtype, vocabulary: int | None, nan: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lade.target.outputs.SMALL", 0)
    found = []
    for way in (nullcontext(), counted()):
        with way:
            read = outputs(precision, vocabulary, nan)
            greedy = [read.greedy(row, node) for row, lines in enumerate(LINES) for node in lines]
            found.append([greedy, read.nan_rows([0, 1, 2]), *read.likeliest()])
    assert found[0][:2] == found[1][:2]
    assert found[0][1] == [1] * (2 in nan)
    assert np.array_equal(found[0][2], found[1][2])
    assert found[0][3] == pytest.approx(found[1][3], rel=1e-5, nan_ok=True)


@pytest.mark.parametrize("first", ["nan_rows", "greedy", "likeliest"])
def test_one_pass_for_whatever_is_read(first: str) -> None:
    asks = {"nan_rows": ([0, 1],), "greedy": (0, 2), "likeliest": ()}
    with counted() as passes:
        read = outputs(torch.bfloat16)
        for name in (first, *asks):
            getattr(read, name)(*asks[name])
    assert passes == [6]


def test_a_few_float32_logits_are_read_for_a_top_k_alone() -> None:
    """A drafter that asks for choices only pays for no more."""
    with counted() as passes:
        read = outputs(torch.float32)
        read.greedy(0, 0)
        read.nan_rows([0, 1])
        assert passes == []
        read.likeliest()
    assert passes == [6]


def test_a_step_with_drafts_reads_its_logits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    by_torch: list[int] = []
    read = Outputs._float32
    monkeypatch.setattr(Outputs, "_float32", lambda self: by_torch.append(len(self.logits)) or read(self))
    model, config = tiny_model(BY_NAME["llama"], "sdpa"), lade.LookaheadConfig(budget=12, adapt=False)
    with counted() as passes:
        lade.generate(model, **words(9), config=config, do_sample=False, max_new_tokens=9)
    assert len(passes) == lade.last_stats().steps  # type: ignore[union-attr]
    assert max(passes) > 1
    assert set(by_torch) <= {1}  # without drafts
