"""Trained models beside plain decoding: equal texts, and how many forwards they take."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from identity import Identity, PlainText, plain_text
from stories import ENDS, local, local_prompts
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import lade
from lade.models import load

SMALL = lade.LookaheadConfig(mode="lookahead", ngram=5, window=7, guesses=7)
FROM_PROMPT = replace(SMALL, pool_from_prompt=True)
LARGE = lade.LookaheadConfig(mode="lookahead", ngram=7, window=20, guesses=20, pool_from_prompt=True)

NEW_TOKENS = {"stories260K": 96, "stories3M-draft": 64, "stories3M": 64, "code8M": 32}  # of the local models
FIRST = 16  # prompts that the bounds hold for
BOUNDS = ((SMALL, 1.62), (LARGE, 1.99))  # tokens per step of stories3M on them


@dataclass
class Trained:
    """A model, its tokenizer, and what plain decoding wrote so far: each text once."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    _plain: dict[Any, PlainText] = field(default_factory=dict)

    def encode(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """A left-padded batch; what the padding is does not matter."""
        rows = [self.tokenizer(text)["input_ids"] for text in texts]
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        return {"input_ids": ids, "attention_mask": mask}

    def plain(self, texts: Sequence[str], **settings: Any) -> PlainText:
        key = (*texts, repr(settings))
        if key not in self._plain:
            self._plain[key] = plain_text(self.model, **self.encode(texts), **settings)
        return self._plain[key]


def batches(texts: Sequence[str], rows: int) -> Iterator[Sequence[str]]:
    return (texts[start : start + rows] for start in range(0, len(texts), rows))


@dataclass
class Figures:
    """Of several calls: new tokens, forwards after the prefill, accepted tokens."""

    tokens: int = 0
    steps: int = 0
    accepted: int = 0

    def __str__(self) -> str:
        return f"{self.tokens} tokens in {self.steps} forwards, {self.accepted} of them accepted"

    def count(self) -> None:
        """Add the last call's."""
        stats = lade.last_stats()
        assert stats is not None
        assert stats.fallback is None
        self.tokens += stats.new_tokens
        self.steps += stats.steps
        self.accepted += stats.accepted_tokens

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps


def greedy(
    trained: Trained,
    texts: Sequence[str],
    config: lade.LookaheadConfig | None,
    identity: Identity,
    rows: int = 1,
    method: Any = None,
    **settings: Any,
) -> Figures:
    """Every text is plain decoding's, and drafts were accepted."""
    found = Figures()
    for batch in batches(texts, rows):
        asked = trained.encode(batch) | settings | {"config": config, "method": method, "do_sample": False}
        ours = lade.generate(trained.model, **asked)
        found.count()
        identity.check(ours, trained.plain(batch, **settings))
    assert found.accepted > 0
    return found


def sampled(
    trained: Trained, texts: Sequence[str], config: lade.LookaheadConfig, rows: int = 1, **settings: Any
) -> Figures:
    """With the same seed the same text, and the generator ends in the state that plain decoding leaves."""
    found = Figures()
    for seed, batch in enumerate(batches(texts, rows)):
        arguments = trained.encode(batch) | settings | {"do_sample": True}
        torch.manual_seed(seed)
        theirs = trained.model.generate(**arguments)
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        ours = lade.generate(trained.model, **arguments, config=config)
        found.count()
        assert ours.tolist() == theirs.tolist()
        assert torch.equal(torch.get_rng_state(), state)
    assert found.accepted > 0
    return found


def story_laws(count: int) -> Iterator[tuple[str, Callable[[], Figures]]]:
    """Laws of the local models on so many story prompts, by name; a broken one raises an AssertionError."""
    texts, identity = local_prompts()[:count], Identity()
    for name, tokens in NEW_TOKENS.items():
        model = Trained(*load(local("models", name), dtype="float32"))
        asked, sampling = {"max_new_tokens": tokens}, {"temperature": 0.7, "top_p": 0.9}
        yield f"{name}, greedy", partial(greedy, model, texts, SMALL, identity, **asked)
        yield f"{name}, greedy in batches", partial(greedy, model, texts, FROM_PROMPT, identity, rows=8, **asked)
        yield f"{name}, sampled", partial(sampled, model, texts, FROM_PROMPT, rows=8, **asked, **sampling)
        if name == "stories3M" and count >= FIRST:
            for config, bound in BOUNDS:
                yield (
                    f"{name}, at least {bound} per step",
                    partial(_fast, model, texts[:FIRST], config, identity, bound),
                )
    yield "near-ties", partial(_rare_ties, identity)


def _rare_ties(identity: Identity) -> Figures:
    identity.assert_ties_are_rare()
    return Figures(tokens=identity.tokens)


def _fast(
    model: Trained, texts: Sequence[str], config: lade.LookaheadConfig, identity: Identity, bound: float
) -> Figures:
    found = greedy(model, texts, config, identity, max_new_tokens=192, **ENDS)
    assert found.tokens_per_step >= bound, found
    return found
