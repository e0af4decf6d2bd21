"""The warm table: a model's most likely tokens after every vocabulary entry alone and after endings of its own texts.

Knows tensors only. V vocabulary entries, n endings, k most likely tokens.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch

from lade.memory.context import CONTEXT


@dataclass(frozen=True, slots=True, eq=False)
class WarmContexts:
    """Predictions after n endings.

    Attributes:
        endings: [n, CONTEXT] int32, the last tokens, padded with NOTHING on the left. No two are the same.
        tokens: [n, k] int32, most likely first.
        probabilities: [n, k] float32, descending; 0 where fewer tokens are known.
    """

    endings: torch.Tensor
    tokens: torch.Tensor
    probabilities: torch.Tensor


def no_contexts(top: int) -> WarmContexts:
    empty = torch.empty(0, top)
    return WarmContexts(torch.empty(0, CONTEXT, dtype=torch.int32), empty.int(), empty)


@dataclass(frozen=True, eq=False)
class WarmTable:
    """The model's most likely next tokens after each token alone, and after longer contexts from texts of its own.

    Attributes:
        tokens: [V, k] int32, most likely first.
        probabilities: [V, k] float32, descending; 0 in rows that are not computed yet.
        contexts: its predictions after endings of texts that it wrote.
        seconds: the time that computing it took.
        complete: whether it is computed in full; if not, the most frequent entries and some texts are there.
        prompts: a hash of the user's prompts whose answers gave it contexts too; empty: there were none.
        digest: 12 hexadecimal digits that differ between tables.
    """

    tokens: torch.Tensor
    probabilities: torch.Tensor
    contexts: WarmContexts
    seconds: float
    complete: bool = True
    prompts: str = ""
    digest: str = field(init=False)
    _entries: dict[int, tuple[list[int], list[float]]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        digest, contexts = hashlib.blake2b(digest_size=6), self.contexts
        predicted = (self.tokens, self.probabilities, contexts.endings, contexts.tokens, contexts.probabilities)
        for part in predicted:
            digest.update(part.numpy().tobytes())
        object.__setattr__(self, "digest", digest.hexdigest())

    @property
    def kept(self) -> int:
        """Tokens per entry, k; a table with more also serves a request for fewer."""
        return self.tokens.shape[1]

    def entry(self, token: int) -> tuple[list[int], list[float]]:
        """Tokens and probabilities after `token`, nothing for one outside the vocabulary; not to be changed."""
        found = self._entries.get(token)
        if found is None:
            inside = 0 <= token < len(self.tokens)
            found = (self.tokens[token].tolist(), self.probabilities[token].tolist()) if inside else ([], [])
            self._entries[token] = found
        return found
