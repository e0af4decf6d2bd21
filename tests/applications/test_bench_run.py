"""One call of one contender: how prompts become rows, and what a run makes of its output."""

import pytest
import torch
from benchtools import PROMPTS, asked
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lade.applications.bench.run import padded, run_once, up_to_end
from lade.models.pretrained.figures import repeated_share
from lade.weights.packing import has_packed_weights

CPU = torch.device("cpu")


def test_batches_are_padded_on_the_left() -> None:
    batch = padded([[5, 6, 7], [8]], 0, CPU)
    assert batch.ids.tolist() == [[5, 6, 7], [0, 0, 8]]
    assert batch.mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert batch.rows == ((5, 6, 7), (8,))


def test_a_row_ends_behind_its_end() -> None:
    assert up_to_end([4, 2, 0, 0], {1, 2}) == (4, 2)
    assert up_to_end([4, 2, 0, 0], set()) == (4, 2, 0, 0)


def test_rows_of_a_run_are_what_each_prompt_gives_alone(
    shipped: tuple[PreTrainedModel, PreTrainedTokenizerBase],
) -> None:
    model, tokenizer = shipped
    rows = [tokenizer(prompt.text).input_ids for prompt in PROMPTS]
    ends = model.generate(torch.tensor([rows[0]]), max_new_tokens=9, do_sample=False)[0, -1].item()
    arguments = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": [ends], "pad_token_id": 0}
    for contender in asked("auto"):
        together = run_once(model, contender, padded(rows, 0, CPU), arguments, seed=0)
        alone = [run_once(model, contender, padded([row], 0, CPU), arguments, seed=0).texts[0] for row in rows]
        assert list(together.texts) == alone
        assert len(alone[0]) <= 9
        assert alone[0][-1] == ends
        assert (together.stats is None) == (contender.label == "plain")


@pytest.mark.usefixtures("small_weights")
def test_weights_are_packed_for_the_methods_that_ask_for_it(
    shipped: tuple[PreTrainedModel, PreTrainedTokenizerBase],
) -> None:
    model, tokenizer = shipped
    batch = padded([tokenizer(PROMPTS[0].text).input_ids], 0, CPU)
    arguments = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    plain, ahead = asked("auto:pack=1")
    texts, packed = [], []
    for contender in (plain, ahead, ahead, plain):
        texts.append(run_once(model, contender, batch, arguments, seed=0).texts)
        packed.append(has_packed_weights(model))
    assert packed == [False, True, True, False]
    assert texts == [texts[0]] * 4


def test_repeated_4_grams() -> None:
    assert repeated_share([1, 2, 3]) == 0
    assert repeated_share([1, 2, 3, 4, 5, 6]) == 0
    assert repeated_share([1, 2, 3, 4] * 2) == 1 / 5
    assert repeated_share([7] * 9) == 5 / 6
