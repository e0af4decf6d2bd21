"""Methods that draft with a model: their options, checked when they are made. One frozen class per method.

Makes the drafter of a call; the drafting itself is in `lade.drafters`.
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


class _SecondModelMethod:
    """A method whose drafts come from a second model."""

    __slots__ = ()
    draft: Any

    def check(self, target: Any) -> None:
        pairs.check_pair(target, self.draft)

    def reason(self, call: Call) -> str | None:
        return pairs.reason_for_plain(self.draft, call)


@dataclass(frozen=True, slots=True, eq=False)
class DraftModel(_SecondModelMethod):
    """Speculative decoding (Leviathan et al., arXiv 2211.17192): a smaller model drafts a chain, the target verifies.

    Attributes:
        draft: a causal model with the target's tokenizer; vocabularies may be padded to different sizes.
        tokens: drafted per step, 1 to 256; the start value for `"acceptance"`, the maximum for `"confidence"`.
        adapt: `"fixed"`: always `tokens`. `"acceptance"`: two more after a draft that was accepted whole, else one
            fewer, from 1 to twice `tokens`. `"confidence"`: up to the first token with a probability below
            `threshold`, which moves by 0.01 per step towards an acceptance rate of 0.9.
        threshold: the first threshold of `"confidence"`, from 0 to 1.
        likeliest: draft the likeliest tokens also where the target samples: the sampled text equals plain decoding's
            with the same seed. Otherwise drafts are drawn, and only the distribution equals plain decoding's.

    Raises:
        ValueError: a field is wrong.
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
        chooser = _chooser(call, self.likeliest, replacement=True)
        return ModelDrafter(pairs.second_model(self.draft, target), chooser, length, _chain_width, "draft")


@dataclass(frozen=True, slots=True, eq=False)
class MultiCandidate(_SecondModelMethod):
    """Multi-candidate speculative decoding (Yang et al., arXiv 2401.06706): a tree with several candidates per node.

    Attributes:
        draft: a causal model with the target's tokenizer; vocabularies may be padded to different sizes.
        widths: candidates per node, depth by depth: (4, 2, 2) makes 4 + 8 + 16 nodes. At most 256 nodes.
        replacement: draw the candidates of a node with replacement, so that some may be equal.
        likeliest: as in `DraftModel`.

    Raises:
        ValueError: a field is wrong.
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
        chooser = _chooser(call, self.likeliest, self.replacement)
        width = self.widths.__getitem__
        return ModelDrafter(pairs.second_model(self.draft, target), chooser, length, width, "draft")


@dataclass(frozen=True, slots=True, eq=False)
class SelfSpeculative:
    """Self-speculative decoding (Draft & Verify, arXiv 2309.08168): the target drafts with sub-layers skipped.

    Attributes:
        layers: the sub-layers to skip: (layers without attention, layers without MLP), a `SkipSet`, or a file from
            `lade skip-search`. Stored as a `SkipSet`.
        tokens, adapt, threshold, likeliest: as in `DraftModel`.

    Raises:
        ValueError: a field is wrong.
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
        return ModelDrafter(model, _chooser(call, self.likeliest, replacement=True), length, _chain_width, "draft")


def self_speculative(layers: Any, **options: Any) -> SelfSpeculative:
    """The same as `SelfSpeculative(layers, **options)`."""
    return SelfSpeculative(layers, **options)


def check_method(method: Any, **others: object) -> None:
    """Check the argument `method`.

    Args:
        others: arguments that may not be given with a method, by name; `None` where they are not given.

    Raises:
        ValueError: it is not a method, or one of the others is given too.
    """
    if method is None:
        return
    drafts = all(callable(getattr(method, name, None)) for name in ("check", "reason", "drafter"))
    if not drafts or isinstance(method, type):
        raise invalid("method", "a lade.DraftModel, lade.MultiCandidate, lade.SelfSpeculative or None", method)
    for name, value in others.items():
        if value is not None:
            raise invalid(name, f"None with method={type(method).__name__}", value)


def _chooser(call: Call, likeliest: bool, replacement: bool) -> Chooser:
    """Chooses a call's candidates: drawn from the warped distribution where it samples, else the likeliest."""
    if likeliest or not call.generation_config.do_sample:
        return Likeliest()
    warpers = [processor for processor in call.processors if type(processor) in purity.TEXT_BLIND]
    return Drawn(LogitsProcessorList(warpers), replacement)


def _chain_width(level: int) -> int:
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
