"""Stop rules end a text at the same token as without lade, inside a draft too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sidebyside import NEW_TOKENS, PROMPT, PROMPTS, Recorder, assert_same, both, encode, story, token
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

import lade


@pytest.mark.parametrize("texts", [(PROMPT,), PROMPTS], ids=("alone", "padded"))
def test_stop_strings(texts: tuple[str, ...]) -> None:
    model, tokenizer = story()
    whole = model.generate(**encode(*texts), do_sample=False, max_new_tokens=NEW_TOKENS)
    written = tokenizer.decode(whole[0, encode(*texts)["input_ids"].shape[1] :])
    stop = written[len(written) // 2 :][:3]
    kwargs = {"stop_strings": [stop, "zebra"], "tokenizer": tokenizer}
    ours = assert_same(texts, **kwargs)
    assert stop in tokenizer.decode(ours[0])
    assert len(texts) > 1 or ours.shape[1] < whole.shape[1]


@pytest.mark.parametrize("position", [0, 1, 11, 22])
def test_several_end_tokens(position: int) -> None:
    model, inputs = story()[0], encode()
    start = inputs["input_ids"].shape[1]
    whole = model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS)[0, start:].tolist()
    theirs, ours = both(model, lambda: inputs, eos_token_id=[511, whole[position], 1])
    assert ours.tolist() == theirs.tolist()
    assert ours.shape[1] == start + whole.index(whole[position]) + 1
    assert lade.last_stats().fallback is None


@pytest.mark.parametrize("new_tokens", [1, 2, 3])
def test_few_tokens(new_tokens: int) -> None:
    theirs, ours = both(story()[0], lambda: encode(), max_new_tokens=new_tokens)
    assert ours.tolist() == theirs.tolist()
    assert lade.last_stats().fallback is None


def test_max_time() -> None:
    assert_same(max_time=3600.0)


def test_max_time_that_is_up() -> None:
    theirs, ours = both(story()[0], lambda: encode(), max_time=1e-9)
    assert ours.tolist() == theirs.tolist()


def test_generation_config_object() -> None:
    settings = GenerationConfig(max_length=50, repetition_penalty=1.1, do_sample=False, eos_token_id=1, pad_token_id=0)
    assert_same(max_new_tokens=None, do_sample=None, generation_config=settings)


class Edits:
    """Changes every third text that it gets, in place, and notes all that it gets."""

    def __init__(self, place: int) -> None:
        self.place, self.seen = place, list[Any]()

    def edit(self, input_ids: torch.Tensor) -> None:
        self.seen.append(input_ids.tolist())
        if len(self.seen) % 3 == 0:
            input_ids[:, self.place] = token(" dog")


class EditingCriterion(StoppingCriteria):
    def __init__(self, edits: Edits) -> None:
        self.edits = edits

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.edits.edit(input_ids)
        return torch.zeros(len(input_ids), dtype=torch.bool)


class EditingProcessor(LogitsProcessor):
    def __init__(self, edits: Edits) -> None:
        self.edits = edits

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.edits.edit(input_ids)
        return scores


EDITING: dict[str, Any] = {
    "stopping_criteria": lambda edits: StoppingCriteriaList([EditingCriterion(edits)]),
    "logits_processor": lambda edits: LogitsProcessorList([EditingProcessor(edits)]),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("place", [-1, -2])
@pytest.mark.parametrize("kind", EDITING)
def test_texts_that_are_changed_in_place(kind: str, place: int, mode: Callable[[], Any]) -> None:
    """Plain decoding goes on with what a criterion or processor of the caller's has written, and returns it; the
    streamer gets the token that was chosen."""
    made: list[tuple[Edits, Recorder]] = []

    def inputs() -> dict[str, Any]:
        edits, streamer = Edits(place), Recorder()
        made.append((edits, streamer))
        return encode() | {kind: EDITING[kind](edits), "streamer": streamer}

    with mode():
        theirs, ours = both(story()[0], inputs)
    assert ours.tolist() == theirs.tolist()
    (plain, streamed), (edits, streamer) = made
    assert edits.seen == plain.seen
    assert streamer.calls == streamed.calls
    assert token(" dog") in ours[0].tolist()
    assert lade.last_stats().fallback is None
