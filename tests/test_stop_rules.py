"""Stop rules end a text at the same token as without lade, inside a draft too."""

import pytest
from sidebyside import NEW_TOKENS, PROMPT, PROMPTS, assert_same, both, encode, story
from transformers import GenerationConfig

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
