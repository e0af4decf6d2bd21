"""One case: all parameters of a comparison, drawn from a seed and an index, and printed in one line."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields
from typing import Any

KINDS = ("generate", "conversation", "files", "signals", "threads", "engine", "serve")


@dataclass(frozen=True, kw_only=True)
class Case:
    """The parameters of a comparison. The line leaves out fields at their defaults.

    Attributes:
        index: the case's number under the seed.
        model, attention, dtype: what `hostile.subjects` builds.
        lengths: tokens of each prompt of the batch.
        layout: padding of the batch: left, or one of `hostile.prompts.LAYOUTS`.
        text: contents of prompts (`hostile.prompts.TEXTS`).
        way: lade's entry point (`hostile.calls.WAYS`).
        config: fields of a `LookaheadConfig`.
        method: drafting method with a model, or empty.
        reference: reference text (`hostile.calls.REFERENCES`).
        warm: whether the cache folder has a warm table.
        choose: arguments of sampling; empty for greedy decoding.
        options: other arguments of `generate` (`hostile.options.OPTIONS`).
        inputs: form of the prompts, if not ids (`hostile.calls.INPUTS`).
        outputs: further outputs of the call.
        cache: kind of cache (`hostile.calls.CACHES`).
        change: change of the model between two calls (`hostile.changes.CHANGES`).
        attack: the attack of a case of files, signals or threads (its module's table).
        turns: further turns of a conversation.
        requests, slots: of an engine or a server.
        chunk: the most tokens of prompts in one forward of an engine.
        images: seeds of the images in a request's prompt, in order.
        before: tokens of earlier turns of a request, with the places of their images.
        memory: kv_bytes of an engine, over what its largest request may come to need; 0: no bound.
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
    requests: int = 0
    slots: int = 0
    chunk: int = 0
    memory: float = 0.0
    images: tuple[int, ...] = ()
    before: tuple[int, ...] = ()

    def draws(self, purpose: str) -> random.Random:
        """A generator seeded by the case and the purpose."""
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
