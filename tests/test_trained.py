"""Trained models: the texts of plain decoding, greedy and sampled, one at a time and in batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from identity import Identity, plain_text
from stories import PROMPTS, local, local_prompts
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import lade
import lade.models

Story = tuple[PreTrainedModel, PreTrainedTokenizerBase]
CONFIGS = {
    "5/7/7": lade.LookaheadConfig(mode="lookahead", ngram=5, window=7, guesses=7),
    "7/20/20 + prompt": lade.LookaheadConfig(mode="lookahead", ngram=7, window=20, guesses=20, pool_from_prompt=True),
}
CONFIG = CONFIGS["7/20/20 + prompt"]
SMALL = lade.LookaheadConfig(
    mode="lookahead", ngram=5, window=7, guesses=7, pool_from_prompt=True
)  # where the CPU would wait too long
SAMPLING = {"pure": {"top_k": 0}, "warped": {"temperature": 0.7, "top_k": 40, "top_p": 0.9}}


@dataclass
class Tally:
    """Over several texts: that drafts were accepted at all."""

    accepted: int = 0

    def count(self) -> None:
        stats = lade.last_stats()
        assert stats.fallback is None
        self.accepted += stats.accepted_tokens


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> dict[str, Tensor]:
    """A left-padded batch; what the padding is does not matter."""
    rows = [tokenizer(text)["input_ids"] for text in texts]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def assert_greedy(
    story: Story, texts: Sequence[str], new_tokens: int, config: lade.LookaheadConfig, identity: Identity, rows: int = 1
) -> None:
    model, tokenizer = story
    tally = Tally()
    for start in range(0, len(texts), rows):
        kwargs: dict[str, Any] = encode(tokenizer, texts[start : start + rows]) | {"max_new_tokens": new_tokens}
        ours = lade.generate(model, **kwargs, config=config, do_sample=False)
        tally.count()
        identity.check(ours, plain_text(model, **kwargs))
    assert tally.accepted > 0


def assert_samples(
    story: Story, texts: Sequence[str], new_tokens: int, config: lade.LookaheadConfig, rows: int = 1, **sampling: Any
) -> None:
    """With the same seed the same text, and the generator stands where plain decoding leaves it."""
    model, tokenizer = story
    tally = Tally()
    for start in range(0, len(texts), rows):
        kwargs = encode(tokenizer, texts[start : start + rows]) | sampling
        kwargs |= {"do_sample": True, "max_new_tokens": new_tokens}
        torch.manual_seed(start)
        theirs = model.generate(**kwargs)
        state = torch.get_rng_state()
        torch.manual_seed(start)
        ours = lade.generate(model, **kwargs, config=config)
        tally.count()
        assert ours.tolist() == theirs.tolist()
        assert torch.equal(torch.get_rng_state(), state)
    assert tally.accepted > 0


# The model that ships


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def story(request: pytest.FixtureRequest) -> Story:
    return lade.models.load("stories260K", attn_implementation=request.param)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_greedy(story: Story, config: lade.LookaheadConfig, identity: Identity) -> None:
    assert_greedy(story, PROMPTS[:5], 64, config, identity)


def test_greedy_in_batches(story: Story, identity: Identity) -> None:
    assert_greedy(story, PROMPTS, 64, CONFIG, identity, rows=5)


def test_greedy_to_the_end_of_the_story(shipped: Story, identity: Identity) -> None:
    """Past the first end of a text, through the next story, on a text of 500 tokens."""
    model, tokenizer = shipped
    kwargs = encode(tokenizer, PROMPTS[:1])
    kwargs |= {"max_new_tokens": 512 - kwargs["input_ids"].shape[1]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.generation_config, "eos_token_id", None)
        ours = lade.generate(model, **kwargs, config=CONFIG, do_sample=False)
        identity.check(ours, plain_text(model, **kwargs))
    assert ours.shape[1] == 512


def test_greedy_in_float64(identity: Identity) -> None:
    """No tie is granted here."""
    assert_greedy(lade.models.load("stories260K", dtype="float64"), PROMPTS[:5], 64, CONFIG, identity)


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("rows", [1, 5])
def test_samples(rows: int, sampling: dict[str, Any], shipped: Story) -> None:
    assert_samples(shipped, PROMPTS[:5], 64, CONFIG, rows, **sampling)


# Story prompts, on all models that are at hand; `benchmarks/laws.py` has trained models in its many cases too

MODELS = {"stories260K": 96, "stories3M-draft": 64, "stories3M": 64, "code8M": 32}  # new tokens
SOME = 16  # prompts


@pytest.fixture(scope="module", params=MODELS)
def trained(request: pytest.FixtureRequest) -> tuple[Story, int]:
    return lade.models.load(local("models", request.param), dtype="float32"), MODELS[request.param]


@pytest.mark.slow
def test_greedy_on_story_prompts(trained: tuple[Story, int], identity: Identity) -> None:
    assert_greedy(trained[0], local_prompts()[:SOME], trained[1], CONFIGS["5/7/7"], identity)


@pytest.mark.slow
def test_greedy_on_story_prompts_in_batches(trained: tuple[Story, int], identity: Identity) -> None:
    assert_greedy(trained[0], local_prompts()[:SOME], trained[1], SMALL, identity, rows=8)


@pytest.mark.slow
def test_samples_on_story_prompts(trained: tuple[Story, int]) -> None:
    assert_samples(trained[0], local_prompts()[:SOME], trained[1], SMALL, rows=8, temperature=0.7, top_p=0.9)
