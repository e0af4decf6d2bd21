"""Rows of a batch: each at its own pace, the same text as alone, the same random numbers as plain decoding."""

import warnings
from functools import cache
from typing import Any

import pytest
import torch
from families import BY_NAME
from identity import Identity, PlainText, plain_text
from sidebyside import assert_looked_ahead
from tiny import tiny_model, words
from torch import Tensor
from transformers import PreTrainedModel

import lade

CONFIG = lade.LookaheadConfig(mode="lookahead", ngram=4, window=5, guesses=5, pool_from_prompt=True)
NAMES = ("llama", "mistral-sliding", "gemma3", "gpt2", "opt", "gpt_oss", "llama4", "deepseek_v3", "falcon")
LENGTHS = (12, 5, 9, 1, 7)
NEW_TOKENS = 24
SAMPLING = {"do_sample": True, "temperature": 0.4, "top_k": 8}


def tiny(name: str) -> PreTrainedModel:
    return tiny_model(BY_NAME[name], BY_NAME[name].attention[-1])


@cache
def plain(name: str) -> PlainText:
    """Of the whole batch."""
    return plain_text(tiny(name), **words(*LENGTHS), max_new_tokens=NEW_TOKENS)


def seeded(seed: int, generate: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """What is generated, and the state that the global generator is left in."""
    torch.manual_seed(seed)
    return generate(*args, **kwargs), torch.get_rng_state()


def end_tokens(name: str) -> list[int]:
    """Two tokens that stand at different places of the rows' own texts, so that rows end at different times."""
    text = plain(name).sequences[:, max(LENGTHS) :]
    return [int(text[0, 6]), int(text[1, 14])]


def row_lengths(text: Tensor, ends: list[int], start: int) -> list[int]:
    new = text[:, start:].tolist()
    return [next((i + 1 for i, token in enumerate(row) if token in ends), len(row)) for row in new]


# Greedy


@pytest.mark.parametrize("name", NAMES)
def test_each_row_as_if_alone(name: str, identity: Identity) -> None:
    model, batch = tiny(name), words(*LENGTHS)
    together = lade.generate(model, **batch, config=CONFIG, do_sample=False, max_new_tokens=NEW_TOKENS)
    assert_looked_ahead()
    identity.check(together, plain(name))
    for row, length in [*enumerate(LENGTHS)][1::2]:  # padded by some tokens, and by all but one
        alone = plain_text(model, input_ids=batch["input_ids"][row : row + 1, -length:], max_new_tokens=NEW_TOKENS)
        identity.check(together[row : row + 1, -length - NEW_TOKENS :], alone)


@pytest.mark.compat
@pytest.mark.parametrize("name", NAMES)
def test_rows_end_at_different_times(name: str) -> None:
    model, batch = tiny(name), words(*LENGTHS)
    ends = end_tokens(name)
    kwargs = batch | {"do_sample": False, "max_new_tokens": NEW_TOKENS, "eos_token_id": ends}
    expected = model.generate(**kwargs)
    ours = lade.generate(model, **kwargs, config=CONFIG)
    assert ours.tolist() == expected.tolist()
    assert len(set(row_lengths(ours, ends, max(LENGTHS)))) > 1
    assert lade.last_stats().fallback is None


@pytest.mark.parametrize("dtype", [torch.bool, torch.long])
def test_the_users_mask_stays_as_it_was(dtype: torch.dtype) -> None:
    """Rows that end change places inside the engine; the tensor that the user gave does not."""
    model, batch = tiny("llama"), words(*LENGTHS)
    batch["attention_mask"] = batch["attention_mask"].to(dtype)
    before = batch["attention_mask"].clone()
    first = model.generate(**batch, do_sample=False, max_new_tokens=1)[:, -1].tolist()
    for row in range(len(LENGTHS)):
        lade.generate(model, **batch, do_sample=False, max_new_tokens=8, eos_token_id=first[row], config=CONFIG)
        assert lade.last_stats().fallback is None
        assert torch.equal(batch["attention_mask"], before)


def test_a_row_ends_at_its_first_token() -> None:
    model, batch = tiny("llama"), words(*LENGTHS)
    first = model.generate(**batch, do_sample=False, max_new_tokens=1)[:, -1].tolist()
    for row in range(len(LENGTHS)):
        kwargs = batch | {"do_sample": False, "max_new_tokens": NEW_TOKENS, "eos_token_id": first[row]}
        assert lade.generate(model, **kwargs, config=CONFIG).tolist() == model.generate(**kwargs).tolist()


def test_all_rows_end_at_their_first_token() -> None:
    model, batch = tiny("llama"), words(*LENGTHS)
    first = model.generate(**batch, do_sample=False, max_new_tokens=1)[:, -1].tolist()
    kwargs = batch | {"do_sample": False, "max_new_tokens": NEW_TOKENS, "eos_token_id": sorted(set(first))}
    ours = lade.generate(model, **kwargs, config=CONFIG)
    assert ours.tolist() == model.generate(**kwargs).tolist()
    assert ours.shape[1] == max(LENGTHS) + 1


@pytest.mark.parametrize("kind", ["hole", "right", "all padding"])
@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "gpt2"])
def test_unusual_masks_are_accepted(name: str, kind: str) -> None:
    """Whatever plain decoding makes of them, the patch makes the same."""
    model, batch = tiny(name), words(9, 9, 9)
    mask = batch["attention_mask"]
    {"hole": mask[1, 3:5], "right": mask[1, 6:], "all padding": mask[1]}[kind].fill_(0)
    kwargs = batch | {"do_sample": False, "max_new_tokens": 16}
    expected = model.generate(**kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lade.FallbackWarning)
        lade.augment_all()
        try:
            ours = model.generate(**kwargs)
        finally:
            lade.restore_all()
    assert ours.tolist() == expected.tolist()


# Sampled


@pytest.mark.compat
@pytest.mark.parametrize(
    ("lengths", "ends"),
    [((9,), False), (LENGTHS, False), (LENGTHS, True)],
    ids=("alone", "padded", "padded, by end token"),
)
@pytest.mark.parametrize("name", NAMES)
def test_seeded_samples(name: str, lengths: tuple[int, ...], ends: bool) -> None:
    """The text and the state of the global generator are plain decoding's."""
    model = tiny(name)
    kwargs = words(*lengths) | SAMPLING | {"max_new_tokens": NEW_TOKENS}
    if ends:
        kwargs["eos_token_id"] = end_tokens(name)
    expected, state = seeded(5, model.generate, **kwargs)
    ours, our_state = seeded(5, lade.generate, model, **kwargs, config=CONFIG)
    assert ours.tolist() == expected.tolist()
    assert torch.equal(our_state, state)
    assert lade.last_stats().fallback is None


@pytest.mark.parametrize("lengths", [(9,), (9, 4)], ids=("alone", "padded"))
@pytest.mark.parametrize("name", ["llama", "gemma3", "opt"])
def test_several_samples_of_one_prompt(name: str, lengths: tuple[int, ...]) -> None:
    model = tiny(name)
    kwargs = words(*lengths) | SAMPLING | {"max_new_tokens": NEW_TOKENS, "num_return_sequences": 3}
    expected, state = seeded(6, model.generate, **kwargs)
    ours, our_state = seeded(6, lade.generate, model, **kwargs, config=CONFIG)
    assert ours.tolist() == expected.tolist()
    assert len({tuple(row) for row in ours.tolist()}) > len(lengths)
    assert torch.equal(our_state, state)
    assert_looked_ahead()


def test_calls_in_a_row_share_one_stream_of_random_numbers() -> None:
    model, kwargs = tiny("llama"), words(5, 9) | SAMPLING | {"max_new_tokens": 10}
    torch.manual_seed(8)
    expected = [model.generate(**kwargs).tolist() for _ in range(3)]
    torch.manual_seed(8)
    assert [lade.generate(model, **kwargs, config=CONFIG).tolist() for _ in range(3)] == expected


def test_greedy_leaves_the_generator_alone() -> None:
    model, kwargs = tiny("llama"), words(*LENGTHS) | {"do_sample": False, "max_new_tokens": NEW_TOKENS}
    torch.manual_seed(4)
    before = torch.get_rng_state()
    lade.generate(model, **kwargs, config=CONFIG)
    assert torch.equal(torch.get_rng_state(), before)
