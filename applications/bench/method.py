"""A row of the method registry, and the options of methods. Knows no method by name."""

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
    """A call of `model.generate` under one method: its arguments in, the sequences [B, prompt + new] out.

    Two more arguments: `reference` if the method `takes_reference`, `draft` (a `Companion`) if it `takes_draft`.
    """

    def __call__(self, model: PreTrainedModel, **generate_arguments: Any) -> Tensor: ...


@dataclass(frozen=True)
class MethodOptions:
    """The options of all methods; each method reads its own. `None`: the method chooses."""

    level: int = 5  # N of the paper's window; in mode auto these three are upper limits
    window: int = 7  # W
    guesses: int | None = None  # G
    pool_from_prompt: bool = False
    lookup_tokens: int = 10
    budget: int | None = None  # tokens per forward
    warm: bool = False  # the warm table is a source too
    corpus: str | None = None  # the file of a corpus, for auto
    reference: str | None = None  # a name in REFERENCES
    use_flash: bool = False  # flash attention computes the trees
    pack: bool = False  # pack the model's weights for the CPU
    adapt: bool = True  # choose the size of every forward, up to the budget; else it is the budget
    draft: str | None = None  # the draft model: a folder or a hub name
    draft_quant: str | None = None  # a name in QUANTS
    draft_tokens: int | None = None  # drafted per step: gamma
    draft_adapt: str | None = None  # a name in LENGTHS
    threshold: float | None = None  # drafting stops below this confidence
    widths: str = "4-2-2"  # candidates after each node, depth by depth
    replacement: bool = False  # candidates are drawn with replacement
    skip: str | None = None  # sub-layers to leave out: a file, or attention layers/MLP layers such as 1-2/3
    contrast_weight: float = 1.0
    contrast_alpha: float = 0.1
    amateur_temperature: float = 1.0
    vocabulary: int | None = None  # of the shared tokenizer, where two models pad it differently


FIXED = ("draft", "draft_quant")  # the same for all contenders of a run


@dataclass(frozen=True)
class BenchMethod:
    """A row of the registry.

    Attributes:
        factory: makes the call. ValueError for options it cannot use, before any model is loaded.
        needs: names of options that must be given.
        default: runs if no methods are named.
        baseline: drafts nothing; others are compared with it.
        takes_batches: decodes several prompts side by side.
        has_stats: leaves its statistics in lade.last_stats().
        uses_warm_table: can draft from the warm table.
        takes_reference: takes `reference`, token ids that its text may repeat.
        takes_draft: takes `draft`, the second model.
        full_warmup: warms up at the full length, because longer runs would compile anew.
        compared_with: the row whose text and speed are the baseline; its own name for a row that drafts nothing and
            decodes another distribution than plain decoding.
        distribution: options that define the decoded distribution. The row in `compared_with` gets the same ones.
        refusal: why the method cannot run with this model, these options and this draft model.
        unless_named: why the method does not run with this model unless it is asked for by name.
    """

    name: str
    factory: Callable[[MethodOptions], Decode]
    needs: tuple[str, ...] = ()
    default: bool = False
    baseline: bool = False
    takes_batches: bool = True
    has_stats: bool = False
    uses_warm_table: bool = False
    takes_reference: bool = False
    takes_draft: bool = False
    full_warmup: bool = False
    compared_with: str = PLAIN
    distribution: tuple[str, ...] = ()
    refusal: Callable[[PreTrainedModel, MethodOptions, Companion | None], str | None] = lambda model, options, draft: (
        None
    )
    unless_named: Callable[[PreTrainedModel], str | None] = lambda model: None
