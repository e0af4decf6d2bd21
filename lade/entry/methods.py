"""Ways of drafting that need a model: what a user says of them, checked when it is said. One frozen class per method.

Knows what each needs of a call and its target; the drafting itself is in `lade.drafters`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Any

from transformers import LogitsProcessorList

from lade.base.arguments import check_integer, check_switch
from lade.base.shown import invalid
from lade.base.wrappers import unwrapped
from lade.core.drafter import Drafter
from lade.drafters.lengths import LENGTHS, Fixed
from lade.drafters.model_drafter import ModelDrafter
from lade.drafters.multi_candidate import Chooser, Drawn, Likeliest
from lade.drafters.self_speculative import SkippedSelf
from lade.engine import purity
from lade.entry import pairs
from lade.target.call import Call
from lade.target.model import HFTarget
from lade.target.skipping import Skipping
from lade.target.skipset import skip_set

NODES = 256  # the most tokens of a draft


class _OfAPair:
    """A method whose drafts a second model makes."""

    __slots__ = ()
    draft: Any

    def check(self, target: Any) -> None:
        pairs.check_pair(target, self.draft)

    def reason(self, call: Call) -> str | None:
        return pairs.reason_for_plain(self.draft, call)


@dataclass(frozen=True, slots=True, eq=False)
class DraftModel(_OfAPair):
    """Speculative decoding (Leviathan et al., arXiv 2211.17192): a smaller model writes ahead, the target verifies.

    Attributes:
        draft: a causal model with the target's tokenizer; vocabularies may be padded to different sizes.
        tokens: drafted per step, 1 to 256; where the number adapts, the first one or the most.
        adapt: `"fixed"`: always `tokens`. `"acceptance"`: two more after a draft that was accepted whole, else one
            fewer, from 1 to twice `tokens`. `"confidence"`: up to the first token that the draft gives less than
            `threshold`, which rises or falls by 0.01 per step with the share of tokens accepted.
        threshold: where `"confidence"` begins, from 0 to 1.
        likeliest: draft the likeliest tokens even where the target samples: the sampled text is then plain decoding's
            with the same seed. Else drafts are drawn, and it is the distribution that is plain decoding's.

    Raises:
        ValueError: names the field, its value and what is allowed.
    """

    draft: Any
    tokens: int = field(default=5, kw_only=True)
    adapt: str = field(default="fixed", kw_only=True)
    threshold: float = field(default=0.4, kw_only=True)
    likeliest: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        pairs.check_draft(self.draft)
        check_length(self.tokens, self.adapt, self.threshold)
        check_switch("likeliest", self.likeliest)

    def drafter(self, call: Call, target: HFTarget) -> Drafter:
        length = partial(LENGTHS[self.adapt], self.tokens, self.threshold)
        chooser = chooser_of(call, self.likeliest, replacement=True)
        return ModelDrafter(pairs.second_model(self.draft, target), chooser, length, one_each, "draft")


@dataclass(frozen=True, slots=True, eq=False)
class MultiCandidate(_OfAPair):
    """Multi-candidate speculative decoding (Yang et al., arXiv 2401.06706): several drafts per position, as a tree.

    Attributes:
        draft: a causal model with the target's tokenizer; vocabularies may be padded to different sizes.
        widths: candidates after each node, depth by depth: (4, 2, 2) makes 4 + 8 + 16 nodes. At most 256 nodes.
        replacement: whether candidates after one node are drawn with replacement, so that some may be the same.
        likeliest: as in `DraftModel`.

    Raises:
        ValueError: names the field, its value and what is allowed.
    """

    draft: Any
    widths: tuple[int, ...] = field(default=(4, 2, 2), kw_only=True)
    replacement: bool = field(default=False, kw_only=True)
    likeliest: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        pairs.check_draft(self.draft)
        check_widths(self.widths)
        check_switch("replacement", self.replacement)
        check_switch("likeliest", self.likeliest)

    def drafter(self, call: Call, target: HFTarget) -> Drafter:
        length = partial(Fixed, len(self.widths), 0.0)
        chooser = chooser_of(call, self.likeliest, self.replacement)
        width = self.widths.__getitem__
        return ModelDrafter(pairs.second_model(self.draft, target), chooser, length, width, "draft")


@dataclass(frozen=True, slots=True, eq=False)
class SelfSpeculative:
    """Self-speculative decoding (Draft & Verify, arXiv 2309.08168): the target drafts with sub-layers left out.

    Attributes:
        layers: whose attention and whose MLP is left out: (attention layers, MLP layers), a `SkipSet`, or a file that
            `lade skip-search` wrote. Held as a `SkipSet`.
        tokens, adapt, threshold, likeliest: as in `DraftModel`.

    Raises:
        ValueError: names the field, its value and what is allowed.
        OSError: the file cannot be read.
    """

    layers: Any
    tokens: int = field(default=8, kw_only=True)
    adapt: str = field(default="confidence", kw_only=True)
    threshold: float = field(default=0.6, kw_only=True)
    likeliest: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", skip_set(self.layers))
        check_length(self.tokens, self.adapt, self.threshold)
        check_switch("likeliest", self.likeliest)

    def check(self, target: Any) -> None:
        Skipping(unwrapped(target), self.layers)

    def reason(self, call: Call) -> str | None:
        return None

    def drafter(self, call: Call, target: HFTarget) -> Drafter:
        model = SkippedSelf(target, Skipping(target.model, self.layers))
        length = partial(LENGTHS[self.adapt], self.tokens, self.threshold)
        return ModelDrafter(model, chooser_of(call, self.likeliest, replacement=True), length, one_each, "draft")


def self_speculative(layers: Any, **options: Any) -> SelfSpeculative:
    """`SelfSpeculative` by the name of what it does."""
    return SelfSpeculative(layers, **options)


def check_method(method: Any, **beside: object) -> None:
    """ValueError where the argument `method` is none, or stands beside settings of drafts without a model.

    Args:
        beside: the call's other arguments, by name, that are `None` where they are not given.
    """
    if method is None:
        return
    drafts = all(callable(getattr(method, name, None)) for name in ("check", "reason", "drafter"))
    if not drafts or isinstance(method, type):
        raise invalid("method", "a lade.DraftModel, lade.MultiCandidate, lade.SelfSpeculative or None", method)
    for name, value in beside.items():
        if value is not None:
            raise invalid(name, f"None beside method={type(method).__name__}", value)


def chooser_of(call: Call, likeliest: bool, replacement: bool) -> Chooser:
    """How a call's candidates are chosen: drawn behind its warpers where it samples, else the likeliest."""
    if likeliest or not call.generation_config.do_sample:
        return Likeliest()
    blind = [processor for processor in call.processors if type(processor) in purity.TEXT_BLIND]
    return Drawn(LogitsProcessorList(blind), replacement)


def one_each(level: int) -> int:
    return 1


def check_length(tokens: Any, adapt: Any, threshold: Any) -> None:
    allowed = f"an integer of at least 1 and at most {NODES}"
    check_integer("tokens", tokens, allowed, lambda value: 1 <= value <= NODES)
    if not isinstance(adapt, str) or adapt not in LENGTHS:
        raise invalid("adapt", f"one of {', '.join(map(repr, LENGTHS))}", adapt)
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise invalid("threshold", "a number from 0 to 1", threshold)


def check_widths(widths: Any) -> None:
    right = isinstance(widths, tuple) and len(widths) > 0 and all(type(w) is int and w >= 1 for w in widths)
    if not right or sum(accumulate(widths, mul)) > NODES:
        raise invalid("widths", f"a tuple of integers of at least 1 that make at most {NODES} nodes", widths)
