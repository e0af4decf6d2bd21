"""One sequence being generated, and the result of verifying one draft of it. Knows no model and no cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from lade.core.logprobs import Logprobs
from lade.core.noise import Noise
from lade.core.tally import Tally
from lade.core.tree import Draft


class Choosing(NamedTuple):
    """How tokens are chosen, where neither a text nor anybody who reads scores has a part in it.

    Attributes:
        all: the requests that are chosen for in this way, each a row of the noise.
        processors: of `purity.TEXT_BLIND`.
        noise: for sampling; `None` chooses the most likely token.
        ends: tokens after which a text ends.
    """

    all: Sequence[Request]
    processors: Sequence[Any] = ()
    noise: Noise | None = None
    ends: frozenset[int] = frozenset()


class Emission(Protocol):
    """Chooses tokens as plain decoding does, and emits them: for one request, or for the rows of one batch."""

    @property
    def choosing(self) -> Choosing | None:
        """How, so that a device may do the same by itself; `None` where it cannot."""
        ...

    def begin(self, rows: Mapping[int, tuple[Request, Draft]], outputs: Any) -> None:
        """Start on the outputs of a forward; called again where a second forward takes the place of the first.

        Args:
            rows: row of the outputs -> a request of this emission, and its draft.
        """
        ...

    def choose(self, row: int, node: int) -> int:
        """The token that plain decoding chooses after this node of a row; the node's path is already emitted."""
        ...

    def emit(self, row: int, token: int) -> bool:
        """Append a chosen token to the request's text.

        Returns whether the walk ends with it: a stop rule ends the text, or code of the caller's put another token in
        its place.
        """
        ...


@dataclass(slots=True, eq=False)
class Request:
    """One sequence being generated.

    Attributes:
        row: its row among the requests of its emission.
        tokens: prompt and emitted tokens, without padding; the last one is the root of the next tree.
        prompt_length: number of prompt tokens.
        limit: the most tokens that it may emit.
        finished: whether a stop rule, an error or its caller has ended it.
        cancelled: whether its caller wants it to end; set by any thread.
        slot: of the target's KV cache; its row if not given.
        emission: chooses its tokens.
        prefilled: prompt tokens that are in the KV cache.
        cached: prompt tokens that were there at its admission: those of a kept prefix.
        max_nodes: the most nodes of its next draft, the root included.
        drafts: whether it gets drafts; not after one made its logits NaN, nor where its caller wants none.
        state: the drafter's, set by `Drafter.start`.
        tally: counts its draft tokens.
        logprobs: takes the log probabilities of its tokens; `None` where its caller wants none.
        inverse_temperature: at which its tokens are chosen, for the ranking of drafts.
        reference: a text that it may repeat.
        corpus: texts that it may repeat, int32 (`lade.memory.corpora`); `None` for the settings' one.
        noise: the sampling noise [V] of an emitted token, by its index, where the host has it (`lade.core.noise`).
        forced: its text so far -> tokens that are sure to follow, as by a grammar; `None` where nothing is known.
        tenant: shares what drafting learned with requests of this tenant; `None` for the settings' one.
        prefixes: gives keys and values of its text's beginning and takes those of all of it at the end
            (`lade.engine.protocols.PrefixStore`); `None` for the loop's.
        prefill: reads its prompt at once, since it has images or other inputs beside its text; returns what moves it
            into a slot and gives the logits after it. `None` for text, and once it is read.
        awaited: whether its caller waits for other rows too: each step helps the caller most in the row that ends last.
        undisturbed: whether no code but lade's and transformers' runs for it between two forwards.
        on_end: called once, when it has left its slot.
        error: what its processors, stop rules or streamer raised, or that a step of its engine was interrupted.
    """

    row: int
    tokens: list[int]
    prompt_length: int
    limit: int
    finished: bool = False
    slot: int = -1
    emission: Emission | None = None
    prefilled: int = 0
    cached: int = 0
    max_nodes: int = 1 << 30
    drafts: bool = True
    state: Any = None
    tally: Tally = field(default_factory=Tally)
    logprobs: Logprobs | None = None
    inverse_temperature: float = 1.0
    reference: Sequence[int] | None = None
    corpus: np.ndarray | None = None
    noise: Callable[[int], np.ndarray] | None = None
    forced: Callable[[Sequence[int]], Sequence[int]] | None = None
    tenant: str | None = None
    prefixes: Any = None
    prefill: Callable[[], Callable[[int], Any]] | None = None
    awaited: bool = False
    undisturbed: bool = False
    on_end: Callable[[Request], None] | None = None
    error: Exception | None = None
    cancelled: bool = False

    def __post_init__(self) -> None:
        if self.slot < 0:
            self.slot = self.row

    @property
    def known_text(self) -> list[int]:
        """The prompt; where it was given as embeddings, the tokens so far."""
        return self.tokens[: self.prompt_length] or self.tokens

    @property
    def emitted(self) -> int:
        return len(self.tokens) - self.prompt_length


class Verdict(NamedTuple):
    """The result of the verification walk: `tokens[i]` was chosen after node `path[i]`; path[0] is the root."""

    path: Sequence[int]
    tokens: list[int]
