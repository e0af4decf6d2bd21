"""The pair that ships, as it is installed: sizes, the tokenizer both share, identity, steps, and their own cards."""

import json
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from identity import Identity, PlainText, plain_text
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import lade
from lade.models import load
from lade.models.pretrained.figures import counted_forwards
from lade.models.pretrained.tokenizer import SPECIAL
from lade.models.shipped import DRAFT, FOLDER, FUNCTION, TARGET

PAIR = (TARGET, DRAFT)
MOST_BYTES = 30_000_000  # of both together
SIZES = {TARGET: (7.9e6, 13e6), DRAFT: (1e6, 2e6)}  # parameters
PROMPTS = (
    FUNCTION,
    'def first_word(text: str) -> str:\n    """Return the first word of a text, or an empty text."""\n',
    'def mean(values):\n    """The mean of some numbers.\n\n    >>> mean([1, 2, 3])\n    2.0\n    """\n',
    "Question: Tom has 3 boxes with 4 apples in each. He eats 2 of the apples. How many are left?\nAnswer:",
)
NEW_TOKENS = 48
SETTINGS: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "eos_token_id": None, "pad_token_id": 3}
STEPS = {TARGET: 2.12, DRAFT: 2.24}  # tokens per step; measured 2.207 and 2.342
Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]


@pytest.fixture(scope="module")
def pair() -> dict[str, Loaded]:
    """In float32, which is the scale for identity."""
    return {name: load(name, dtype="float32") for name in PAIR}


@pytest.fixture(scope="module")
def texts(pair: dict[str, Loaded]) -> list[Tensor]:
    return [pair[TARGET][1](prompt, return_tensors="pt")["input_ids"] for prompt in PROMPTS]


@pytest.fixture(scope="module")
def plain(pair: dict[str, Loaded], texts: list[Tensor]) -> dict[str, list[PlainText]]:
    return {name: [plain_text(pair[name][0], input_ids=ids, **SETTINGS) for ids in texts] for name in PAIR}


@pytest.mark.parametrize("name", PAIR)
def test_a_llama_in_bfloat16_of_the_size_that_is_promised(name: str) -> None:
    model, _ = load(name)
    assert model.config.model_type == "llama"
    assert model.dtype is torch.bfloat16
    assert SIZES[name][0] < model.num_parameters() < SIZES[name][1]
    ends = model.generation_config
    assert (ends.bos_token_id, ends.eos_token_id, ends.pad_token_id) == (0, 0, 3)


def test_the_pair_is_small_and_free() -> None:
    files = [path for name in PAIR for path in (FOLDER / name).iterdir()]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    for name in PAIR:
        assert {path.name for path in files if path.parent.name == name} == {
            *("LICENSE", "README.md", "config.json", "generation_config.json", "model.safetensors"),
            *("tokenizer.json", "tokenizer_config.json"),
        }
        assert "Apache License" in (FOLDER / name / "LICENSE").read_text()


def test_both_have_one_tokenizer() -> None:
    files = [json.loads((FOLDER / name / "tokenizer.json").read_text()) for name in PAIR]
    assert files[0] == files[1]
    assert load(TARGET)[0].config.vocab_size == load(DRAFT)[0].config.vocab_size == 8192


@given(st.text(max_size=60).filter(lambda text: not any(word in text for word in SPECIAL)))
def test_every_text_comes_back(pair: dict[str, Loaded], text: str) -> None:
    _, tokenizer = pair[TARGET]
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == 0
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("name", PAIR)
def test_lookahead_writes_the_text_of_plain_decoding_in_fewer_steps(
    name: str,
    pair: dict[str, Loaded],
    texts: list[Tensor],
    plain: dict[str, list[PlainText]],
    identity: Identity,
) -> None:
    """Whole budgets, so that no clock decides; the texts go past their ends, where there is less to repeat."""
    model, _ = pair[name]
    config = lade.LookaheadConfig(mode="auto", budget=16, adapt=False)
    tokens = steps = 0
    for ids, expected in zip(texts, plain[name], strict=True):
        identity.check(lade.generate(model, ids, config=config, do_sample=False, **SETTINGS), expected)
        stats = lade.last_stats()
        assert stats is not None
        assert stats.fallback is None
        tokens, steps = tokens + stats.new_tokens, steps + stats.steps
    print(f"S = {tokens / steps:.4f}")
    assert tokens / steps >= STEPS[name]


def test_the_draft_saves_its_target_forwards(
    pair: dict[str, Loaded], texts: list[Tensor], plain: dict[str, list[PlainText]]
) -> None:
    """By transformers' own assisted generation."""
    (target, _), (draft, _) = pair[TARGET], pair[DRAFT]
    tokens = forwards = 0
    for ids, expected in zip(texts, plain[TARGET], strict=True):
        settings = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW_TOKENS, "do_sample": False}
        with counted_forwards(target) as count:
            found = target.generate(ids, **settings, assistant_model=draft)
        assert found[0].tolist() == to_its_end(expected.sequences[0].tolist(), ids.shape[1])
        tokens, forwards = tokens + found.shape[1] - ids.shape[1], forwards + count[0]
    print(f"{tokens} tokens in {forwards} forwards")
    assert tokens > 2.7 * forwards  # measured: 126 in 40


def to_its_end(text: list[int], prompt: int) -> list[int]:
    """A text that went on behind the token that ends it."""
    return text[: text.index(0, prompt) + 1] if 0 in text[prompt:] else text


@pytest.mark.parametrize("name", PAIR)
def test_the_card_says_what_a_user_must_know(name: str) -> None:
    card = (FOLDER / name / "README.md").read_text()
    assert card.startswith(f"# {name}\n")
    for part in ("Training", "Held-out text, bits per byte", "Greedy text, tokens per forward", "Samples", "Limits"):
        assert f"\n## {part}\n" in card
    assert re.search(r"[\d,]+ steps of \d+ × \d+ tokens", card)
    assert "held-out cross entropy" in card
    assert "HumanEval, GSM8K's test split and MBPP's test split are not in it" in card
    for source in (
        "torch 2.",
        "transformers 5.",
        "- PSF-2.0: python 3.",
        "GSM8K, training split",
        "- CC-BY-4.0: MBPP, outside",
    ):
        assert source in card
    assert re.search(r"\| prompts \| n \| new tokens \| repeated 4-grams \|", card)
    assert (
        len(re.findall(r"^\| (?:HumanEval|GSM8K test) \| \d+ \| \d+ \| [\d.]+% \| [\d.]+ \|", card, re.MULTILINE)) == 2
    )


@pytest.mark.parametrize("name", PAIR)
def test_the_card_belongs_to_these_weights(name: str, pair: dict[str, Loaded]) -> None:
    """Its samples are what the weights write."""
    model, tokenizer = pair[name]
    card = (FOLDER / name / "README.md").read_text()
    assert f"{model.num_parameters():,} parameters" in card
    samples = re.findall(r"~~~text\n(.*?)\n--->\n(.*?)\n~~~", card, re.DOTALL)
    assert len(samples) == 4
    prompt, output = samples[-1]  # no white space at its ends is lost there
    inputs = tokenizer(prompt, return_tensors="pt")
    found = model.generate(**inputs, max_new_tokens=32, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert output.strip().startswith(tokenizer.decode(found, skip_special_tokens=True).strip()[:60])
