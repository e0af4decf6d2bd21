"""One case: everything that decides a comparison, drawn from a seed and an index, and told in one line."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields
from typing import Any

KINDS = ("generate", "conversation", "files", "signals", "threads")


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is compared. Fields at their defaults are left out of the line.

    Attributes:
        index: the case's number under the seed.
        model, attention, dtype: what `hostile.subjects` builds.
        lengths: tokens of each prompt; several are a batch.
        layout: how prompts of a batch stand: left-padded, or one of `hostile.prompts.LAYOUTS`.
        text: what prompts are made of (`hostile.prompts.TEXTS`).
        way: how lade comes into the call (`hostile.calls.WAYS`).
        config: fields of a `LookaheadConfig`.
        method: how a model drafts, or nothing.
        reference: what text the output may repeat (`hostile.calls.REFERENCES`).
        warm: whether a warm table is found in the cache folder.
        choose: how tokens are chosen: sampling's arguments, or none for greedy.
        options: names of other arguments of `generate` (`hostile.options.OPTIONS`).
        inputs: how prompts come in, where not as ids (`hostile.calls.INPUTS`).
        outputs: what the call gives back beside the text.
        cache: which cache (`hostile.calls.CACHES`).
        change: what happens to the model between two calls (`hostile.changes.CHANGES`).
        attack: what a case of files, signals or threads does (its module's table).
        turns: further turns of a conversation.
    """

    seed: int
    index: int
    kind: str
    model: str = "llama"
    attention: str = "sdpa"
    dtype: str = "float32"
    lengths: tuple[int, ...] = (9,)
    layout: str = "left"
    text: str = "random"
    copies: int = 1
    new_tokens: int = 24
    way: str = "augment"
    config: dict[str, Any] = field(default_factory=dict)
    method: str = ""
    reference: str = ""
    warm: bool = False
    choose: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    inputs: str = ""
    outputs: tuple[str, ...] = ()
    cache: str = ""
    change: str = ""
    attack: str = ""
    turns: int = 0

    def draws(self, purpose: str) -> random.Random:
        """A generator of the case's own for one purpose: the same numbers every time that it is asked for."""
        return random.Random(f"{self.seed}:{self.index}:{purpose}")

    @property
    def rows(self) -> int:
        return len(self.lengths) * self.copies

    @property
    def greedy(self) -> bool:
        return not self.choose

    def __str__(self) -> str:
        told = [f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if self._tells(each)]
        return f"--seed {self.seed} --case {self.index}: {self.kind} " + " ".join(told)

    def _tells(self, each: Any) -> bool:
        usual = {"config": {}, "choose": {}}.get(each.name, each.default)
        always = ("model", "attention")
        return each.name not in ("seed", "index", "kind") and (each.name in always or getattr(self, each.name) != usual)
