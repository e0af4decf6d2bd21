"""What a row of the registry is, and what methods can be told. Knows no method by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lade.applications.bench.companion import Companion

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

PLAIN = "plain"


class Decode(Protocol):
    """One call of `model.generate` in the method's way, with its arguments; returns the sequences [B, prompt + new].

    What a method takes beside them: `reference` where it `refers`, `draft` (a `Companion`) where it `drafts`.
    """

    def __call__(self, model: PreTrainedModel, **generate_arguments: Any) -> Tensor: ...


@dataclass(frozen=True)
class MethodOptions:
    """What the methods can be told; each reads its own part. `None` leaves a choice to the method."""

    level: int = 5  # of the paper's window; in mode auto these three are upper limits
    window: int = 7
    guesses: int | None = None
    pool_from_prompt: bool = False
    lookup_tokens: int = 10
    budget: int | None = None  # tokens of a forward
    warm: bool = False  # draft from the warm table too
    reference: str | None = None  # a name in REFERENCES
    adapt: bool = True  # the size of every forward is chosen anew; else it is the budget
    draft: str | None = None  # the draft model: a folder or a hub name
    draft_quant: str | None = None  # a name in QUANTS
    draft_tokens: int | None = None  # drafted per step: gamma
    draft_adapt: str | None = None  # a name in LENGTHS
    threshold: float | None = None  # of the confidence up to which is drafted
    widths: str = "4-2-2"  # candidates after each node, depth by depth
    replacement: bool = False  # candidates are drawn with replacement
    skip: str | None = None  # sub-layers to leave out: a file, or attention layers/MLP layers such as 1-2/3
    contrast_weight: float = 1.0
    contrast_alpha: float = 0.1
    amateur_temperature: float = 1.0
    vocabulary: int | None = None  # of the shared tokenizer, where two models pad it differently


FIXED = ("draft", "draft_quant")  # one for the whole run: no contender has its own


@dataclass(frozen=True)
class Method:
    """A row of the registry. `factory` raises ValueError on options that it cannot use, before any model is loaded.

    Attributes:
        against: the row whose text and speed a run is compared with; its own name where it is compared with nothing
            else, since it decodes another distribution than plain decoding and drafts nothing.
        distribution: the options that choose which distribution is decoded. A row that is compared with another one is
            compared with it under the same.
        refusal: why it cannot run on this model with these options and this draft model.
    """

    name: str
    factory: Callable[[MethodOptions], Decode]
    needs: tuple[str, ...] = ()  # names of options that must be given
    default: bool = False  # runs, where it can, if no methods are named
    baseline: bool = False  # others are compared with it; it drafts nothing
    batches: bool = True  # decodes several prompts side by side
    reports: bool = False  # leaves its statistics in lade.last_stats()
    warms: bool = False  # can draft from the warm table
    refers: bool = False  # takes `reference`, token ids that its text may repeat, beside generate's arguments
    drafts: bool = False  # takes `draft`, the second model, beside generate's arguments
    settles: bool = False  # warms up at the full length, since longer runs cost it a new start
    against: str = PLAIN
    distribution: tuple[str, ...] = ()
    refusal: Callable[[PreTrainedModel, MethodOptions, Companion | None], str | None] = lambda model, options, draft: (
        None
    )
