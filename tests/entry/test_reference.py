"""Texts that an output may repeat: every way to give one, what is refused, and what a good or bad one does to S."""

import contextlib
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from families import BY_NAME, VOCAB
from stories import ENDS, PROMPTS
from tiny import tiny_model, words
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

import lade
from lade.entry.reference import references_for, references_of

NEW_TOKENS = 40
AUTO = lade.LookaheadConfig(mode="auto", budget=16, adapt=False, sources=("reference", "suffix"))
PAPER = lade.LookaheadConfig(mode="lookahead")


@pytest.fixture(autouse=True)
def no_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LADE_CACHE", str(tmp_path))


# What is a reference


@pytest.mark.parametrize(
    ("reference", "prompts", "texts"),
    [
        (None, 2, None),
        ([1, 2], 1, [[1, 2]]),
        ((1, 2), 2, [(1, 2), (1, 2)]),
        (torch.tensor([1, 2]), 2, [[1, 2], [1, 2]]),
        (torch.tensor([[1, 2]]), 3, [[1, 2]] * 3),
        (torch.tensor([[1, 2], [3, 4]]), 2, [[1, 2], [3, 4]]),
        ([[1, 2], None, [3]], 3, [[1, 2], None, [3]]),
        ([torch.tensor([1, 2]), None], 2, [[1, 2], None]),
        ([None], 2, [None, None]),
        ([], 2, [[], []]),
    ],
)
def test_one_text_per_prompt(reference: Any, prompts: int, texts: Any) -> None:
    assert references_for(references_of(reference), None, AUTO, llama(), prompts) == texts


@pytest.mark.parametrize("reference", ["a text", 7, {1: 2}, b"12", 1.5])
def test_other_types_are_named(reference: Any) -> None:
    with pytest.raises(ValueError, match=f"reference must be token ids .*, got {reference!r}"):
        references_of(reference)


@pytest.mark.parametrize(
    "reference",
    [[1, -1], [1, 2.0], [True, False], ["a"], [[1], "a"], [[1], [2.5]], [[[1]]], [1, None], torch.tensor([0.5])],
    ids=str,
)
def test_whatever_is_no_token_id_is_refused(reference: Any) -> None:
    with pytest.raises(ValueError, match="reference must hold token ids, which are integers of at least 0, got "):
        references_of(reference)


@pytest.mark.parametrize(("reference", "prompts"), [([[1], [2]], 3), ([[1], [2]], 1), ([None] * 4, 3)])
def test_another_number_of_texts_is_named(reference: Any, prompts: int) -> None:
    message = f"reference must hold one text, or one for each of the {prompts} prompts, got {len(reference)} texts"
    with pytest.raises(ValueError, match=message):
        references_for(references_of(reference), None, AUTO, llama(), prompts)


# Ways to give one


def through_generate(model: PreTrainedModel, config: lade.LookaheadConfig, reference: Any, **kwargs: Any) -> Tensor:
    return lade.generate(model, config=config, reference=reference, **kwargs)


def through_a_scope(model: PreTrainedModel, config: lade.LookaheadConfig, reference: Any, **kwargs: Any) -> Tensor:
    with lade.lookahead(model, config, reference=reference):
        return model.generate(**kwargs)


def through_a_method(model: PreTrainedModel, config: lade.LookaheadConfig, reference: Any, **kwargs: Any) -> Tensor:
    return model.generate(custom_generate=lade.decoding_method(config, reference=reference), **kwargs)


def through_the_generation_config(
    model: PreTrainedModel, config: lade.LookaheadConfig, reference: Any, **kwargs: Any
) -> Tensor:
    settings = {name: kwargs.pop(name) for name in ("do_sample", "max_new_tokens", "num_return_sequences")}
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as after:
        patch.delenv("USE_LADE", raising=False)
        patch.setattr("lade.config.default._default", config)
        lade.augment_all()
        after.callback(lade.restore_all)
        given = GenerationConfig(**settings, pad_token_id=0, lade={"reference": reference})
        return model.generate(generation_config=given, **kwargs)


WAYS = (through_generate, through_a_scope, through_a_method, through_the_generation_config)
Way = Callable[..., Tensor]
GREEDY = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "num_return_sequences": 1}


def llama() -> PreTrainedModel:
    return tiny_model(BY_NAME["llama"], "sdpa")


@pytest.mark.compat
@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_text_in_fewer_steps(way: Way) -> None:
    model, prompt = llama(), words(9)
    plain = model.generate(**prompt, **GREEDY)
    ours = way(model, AUTO, plain[0, 9:].tolist(), **prompt, **GREEDY)
    stats = lade.last_stats()
    assert ours.tolist() == plain.tolist()
    assert stats.accepted["reference"] >= 30
    assert stats.steps <= 4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", [0, 1])
def test_text_is_the_same_with_a_wrong_reference(way: Way, seed: int) -> None:
    model, prompt = llama(), words(9, seed=seed)
    plain = model.generate(**prompt, **GREEDY)
    noise = random.Random(seed)
    assert way(model, AUTO, noise.choices(range(VOCAB), k=60), **prompt, **GREEDY).tolist() == plain.tolist()
    assert lade.last_stats().proposed["reference"] > 0


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_a_batch_have_references_of_their_own(way: Way) -> None:
    """Each is accepted where it belongs: with the texts exchanged, hardly anything is."""
    model, batch = llama(), words(5, 9, 3)
    plain = model.generate(**batch, **GREEDY)
    texts = plain[:, 9:].tolist()
    accepted = []
    for references in ([*texts[:2], None], [*texts[1::-1], None]):
        assert way(model, AUTO, references, **batch, **GREEDY).tolist() == plain.tolist()
        accepted.append(lade.last_stats().accepted.get("reference", 0))
    assert accepted[0] >= 60
    assert accepted[1] < accepted[0] / 2


@pytest.mark.parametrize("way", WAYS)
def test_one_reference_serves_all_rows(way: Way) -> None:
    model, prompt = llama(), words(9)
    batch = {name: tensor.repeat(3, 1) for name, tensor in prompt.items()}
    plain = model.generate(**batch, **GREEDY)
    assert way(model, AUTO, plain[0, 9:], **batch, **GREEDY).tolist() == plain.tolist()
    assert lade.last_stats().accepted["reference"] >= 90


@pytest.mark.compat
@pytest.mark.parametrize("way", WAYS)
def test_samples_of_a_prompt_share_its_reference(way: Way) -> None:
    model, batch = llama(), words(5, 9)
    kwargs = batch | {"do_sample": True, "max_new_tokens": 20, "num_return_sequences": 2}
    torch.manual_seed(4)
    expected = model.generate(**kwargs)
    torch.manual_seed(4)
    ours = way(model, AUTO, [expected[0, 9:].tolist(), expected[2, 9:].tolist()], **kwargs)
    assert ours.tolist() == expected.tolist()
    assert lade.last_stats().accepted["reference"] >= 32


@pytest.mark.parametrize("way", WAYS)
def test_a_text_per_sample_is_refused(way: Way) -> None:
    """Which of a prompt's samples would get which is nobody's to choose."""
    kwargs = words(5, 9) | GREEDY | {"do_sample": True, "num_return_sequences": 2}
    with pytest.raises(ValueError, match="reference must hold one text, or one for each of the 2 prompts, got 4 texts"):
        way(llama(), AUTO, [[5], [6], [7], [8]], **kwargs)


@pytest.mark.parametrize("way", WAYS)
def test_refused_in_the_papers_mode(way: Way) -> None:
    with pytest.raises(ValueError, match="mode must be 'auto' where reference is given, got 'lookahead'"):
        way(llama(), PAPER, [5, 6, 7], **words(9), **GREEDY)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reference", ["a text", [1, -1], [[5], [6]]], ids=str)
def test_refused_before_any_work(way: Way, reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    monkeypatch.setattr(type(model), "forward", lambda *args, **kwargs: pytest.fail("the model ran"))
    with pytest.raises(ValueError, match="reference "):
        way(model, AUTO, reference, **words(9), **GREEDY)


def in_a_scope(model: PreTrainedModel, given: GenerationConfig, **prompt: Tensor) -> Tensor:
    with lade.lookahead(model, AUTO):
        return model.generate(generation_config=given, **prompt)


def with_all_augmented(model: PreTrainedModel, given: GenerationConfig, **prompt: Tensor) -> Tensor:
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as after:
        patch.delenv("USE_LADE", raising=False)
        lade.augment_all()
        after.callback(lade.restore_all)
        return model.generate(generation_config=given, **prompt)


def by_a_method(model: PreTrainedModel, given: GenerationConfig, **prompt: Tensor) -> Tensor:
    return model.generate(generation_config=given, custom_generate=lade.decoding_method(AUTO), **prompt)


def by_generate(model: PreTrainedModel, given: GenerationConfig, **prompt: Tensor) -> Tensor:
    return lade.generate(model, generation_config=given, config=AUTO, **prompt)


@pytest.mark.compat
@pytest.mark.parametrize("way", [in_a_scope, with_all_augmented, by_a_method, by_generate])
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("x", r"lade in the generation config must be {'reference': token ids}, got 'x'"),
        ([5, 6], r"lade in the generation config must be .*, got \[5, 6\]"),
        ({"refrence": [5], "reference": [6]}, r"lade in the generation config must be .*, got {'refere.*'refrence'"),
    ],
    ids=("text", "list", "unknown key"),
)
def test_a_wrong_entry_of_the_generation_config_is_named(
    way: Callable[..., Tensor], entry: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llama()
    monkeypatch.setattr(type(model), "forward", lambda *args, **kwargs: pytest.fail("the model ran"))
    with pytest.raises(ValueError, match=message):
        way(model, GenerationConfig(max_new_tokens=4, pad_token_id=0, lade=entry), **words(9))


@pytest.mark.parametrize(
    "asked", [{"reference": "x"}, {"generation_config": GenerationConfig(lade="x")}], ids=("argument", "entry")
)
def test_a_streamer_sees_nothing_of_a_refused_call(asked: dict[str, Any]) -> None:
    streamer = Mock()
    with pytest.raises(ValueError, match="must be "):
        lade.generate(llama(), **words(9), config=AUTO, streamer=streamer, **asked)
    assert streamer.mock_calls == []


def test_a_method_refuses_what_is_no_text_when_it_is_made() -> None:
    with pytest.raises(ValueError, match=r"reference must be token ids .*, got 'a text'"):
        lade.decoding_method(AUTO, reference="a text")


@pytest.mark.parametrize("entry", [None, {}, {"reference": None}], ids=str)
def test_an_empty_entry_asks_for_nothing(entry: Any) -> None:
    model, prompt = llama(), words(9)
    given = GenerationConfig(max_new_tokens=4, pad_token_id=0, lade=entry)
    assert in_a_scope(model, given, **prompt).tolist() == model.generate(generation_config=given, **prompt).tolist()


def test_a_wrong_reference_is_an_error_where_lade_decodes_plainly_too() -> None:
    """What the user asked of lade is not dropped without a word."""
    model = tiny_model(BY_NAME["llama"], "eager")
    kwargs = words(9) | GREEDY | {"output_attentions": True, "return_dict_in_generate": True}
    with pytest.warns(lade.FallbackWarning):
        lade.generate(model, config=AUTO, reference=[5], **kwargs)
    with pytest.raises(ValueError, match="mode must be 'auto' where reference is given"):
        through_the_generation_config(model, PAPER, [5], **kwargs)


def test_the_inner_scope_has_its_own_reference() -> None:
    model, prompt = llama(), words(9)
    plain = model.generate(**prompt, **GREEDY)
    with lade.lookahead(model, AUTO, reference=plain[0, 9:].tolist()):
        with lade.lookahead(model, AUTO):
            assert model.generate(**prompt, **GREEDY).tolist() == plain.tolist()
            assert "reference" not in lade.last_stats().proposed
        assert model.generate(**prompt, **GREEDY).tolist() == plain.tolist()
        assert lade.last_stats().accepted["reference"] >= 30


# What it is worth, on the model that ships


@pytest.fixture(scope="module")
def stories(shipped: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> list[tuple[Tensor, Tensor]]:
    """Prompts and their plain texts."""
    model, tokenizer = shipped
    prompts = [tokenizer(text, return_tensors="pt")["input_ids"] for text in PROMPTS[:6]]
    return [(prompt, model.generate(prompt, do_sample=False, max_new_tokens=96, **ENDS)) for prompt in prompts]


def tokens_per_step(
    model: PreTrainedModel, stories: list[tuple[Tensor, Tensor]], references: Sequence[list[int] | None]
) -> float:
    """S at 32 tokens per forward; every text is plain decoding's."""
    tokens = steps = 0
    config = lade.LookaheadConfig(mode="auto", budget=32, adapt=False)
    for (prompt, plain), reference in zip(stories, references, strict=True):
        kwargs = {"do_sample": False, "max_new_tokens": 96, **ENDS}
        assert lade.generate(model, prompt, config=config, reference=reference, **kwargs).tolist() == plain.tolist()
        tokens, steps = tokens + lade.last_stats().new_tokens, steps + lade.last_stats().steps
    return tokens / steps


def test_an_equal_reference(shipped: Any, stories: list[tuple[Tensor, Tensor]]) -> None:
    references = [plain[0, prompt.shape[1] :].tolist() for prompt, plain in stories]
    assert tokens_per_step(shipped[0], stories, references) >= 8


def test_a_useless_reference(shipped: Any, stories: list[tuple[Tensor, Tensor]]) -> None:
    """Random tokens cost less than 1 % of S: the mean of some draws, since one moves it several percent either way."""
    noise = random.Random(0)
    without = tokens_per_step(shipped[0], stories, [None] * len(stories))
    draws = [[noise.choices(range(3, 512), k=length) for _ in stories] for length in (20, 100, 300)]
    found = [tokens_per_step(shipped[0], stories, references) for references in draws]
    assert statistics.mean(found) >= 0.99 * without, found
