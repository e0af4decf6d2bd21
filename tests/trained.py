"""Trained models beside plain decoding: equal texts, and how many forwards they take."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from identity import Identity, PlainText, plain_text
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import lade

SMALL = lade.LookaheadConfig(mode="lookahead", ngram=5, window=7, guesses=7)
FROM_PROMPT = replace(SMALL, pool_from_prompt=True)
LARGE = lade.LookaheadConfig(mode="lookahead", ngram=7, window=20, guesses=20, pool_from_prompt=True)


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
