"""The methods that can be compared: one row each in `METHODS`. A new method needs its row here and nothing elsewhere.

Knows how a method decodes; nothing of prompts, timing or reports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import lade
from lade.applications.bench import with_draft
from lade.applications.bench.companion import Companion
from lade.applications.bench.method import PLAIN, Decode, Method, MethodOptions
from lade.config.settings import FAMILIES

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

__all__ = ["METHODS", "PLAIN", "Decode", "Method", "MethodOptions", "plain"]

COMPILED = ("cuda", "xpu")  # devices on which transformers compiles by itself
CONTRAST = ("contrast_weight", "contrast_alpha", "amateur_temperature", "vocabulary")


def plain(options: MethodOptions) -> Decode:
    return lambda model, **arguments: model.generate(**arguments)


def static(options: MethodOptions) -> Decode:
    return lambda model, **arguments: model.generate(**arguments, cache_implementation="static")


def not_compiled(model: PreTrainedModel, options: MethodOptions, draft: Companion | None) -> str | None:
    """Elsewhere transformers would fill the static cache without compiling, which is nobody's baseline."""
    if model.device.type in COMPILED:
        return None
    return f"transformers compiles its static cache on {' and '.join(COMPILED)} only; the model is on {model.device}"


def paper(options: MethodOptions) -> lade.LookaheadConfig:
    """The paper's algorithm."""
    return lade.LookaheadConfig(
        mode="lookahead",
        ngram=options.level,
        window=options.window,
        guesses=options.guesses,
        budget=options.budget,
        pool_from_prompt=options.pool_from_prompt,
    )


def one_token(options: MethodOptions) -> lade.LookaheadConfig:
    """No draft at all."""
    return lade.LookaheadConfig(mode="auto", budget=1)


def joined(*sources: str) -> Callable[[MethodOptions], lade.LookaheadConfig]:
    """Lade's own choice of drafts, from these sources; the warm table is one of them only where it is asked for."""

    def configure(options: MethodOptions) -> lade.LookaheadConfig:
        used = tuple(source for source in sources if source != "warm" or options.warm)
        return lade.LookaheadConfig(
            mode="auto",
            ngram=options.level,
            window=options.window,
            guesses=options.guesses,
            budget=options.budget,
            adapt=options.adapt,
            sources=used,
        )

    return configure


def lookahead(options: MethodOptions) -> Decode:
    config = paper(options)

    def decode(model: PreTrainedModel, **arguments: Any) -> Tensor:
        with lade.lookahead(model, config):
            return model.generate(**arguments)

    return decode


def drafting_from(*sources: str) -> Callable[[MethodOptions], Decode]:
    def factory(options: MethodOptions) -> Decode:
        config = joined(*sources)(options)

        def decode(model: PreTrainedModel, reference: Sequence[int] | None = None, **arguments: Any) -> Tensor:
            with lade.lookahead(model, config, reference=reference):
                return model.generate(**arguments)

        return decode

    return factory


def prompt_lookup(options: MethodOptions) -> Decode:
    if options.lookup_tokens < 1:
        raise ValueError(f"lookup_tokens={options.lookup_tokens}: at least 1 is needed")

    def decode(model: PreTrainedModel, **arguments: Any) -> Tensor:
        sequences: Tensor = lade.prompt_lookup_generate(model, draft_tokens=options.lookup_tokens, **arguments)
        return sequences

    return decode


def wrong(options: MethodOptions) -> Decode:
    """Drafts that are sure and never right."""
    from lade.applications.bench.wrong import wrong as factory

    return factory(options)


def with_model(name: str, factory: Callable[[MethodOptions], Decode], **more: Any) -> Method:
    """A row whose method drafts with the second model."""
    given: dict[str, Any] = {"needs": ("draft",), "drafts": True, "reports": True, "refusal": with_draft.no_pair}
    return Method(name, factory, **given | more)


def contrasting(name: str, configure: Callable[[MethodOptions], lade.LookaheadConfig], **more: Any) -> Method:
    """A row that contrasts the two models: another distribution, which the first of these rows decodes plainly."""
    given = {"against": "contrastive", "distribution": CONTRAST, "refusal": with_draft.no_contrast}
    return with_model(name, with_draft.contrastive(configure), **given | more)


METHODS = {
    method.name: method
    for method in (
        Method(PLAIN, plain, default=True, baseline=True),
        Method("static", static, default=True, baseline=True, settles=True, refusal=not_compiled),
        Method("lookahead", lookahead, default=True, reports=True),
        Method("auto", drafting_from(*FAMILIES), default=True, reports=True, warms=True, refers=True),
        Method("recycled", drafting_from("recycled", "warm"), reports=True, warms=True),
        Method("suffix", drafting_from("suffix"), reports=True),
        Method("wrong", wrong, needs=("reference",), reports=True, refers=True),
        Method("prompt_lookup", prompt_lookup, default=True, batches=False, reports=True),
        with_model("draft", with_draft.draft),
        with_model("multi_candidate", with_draft.multi_candidate),
        with_model("assisted", with_draft.assisted, batches=False, refusal=with_draft.no_assistant),
        Method(
            "self_speculative",
            with_draft.self_speculative,
            needs=("skip",),
            reports=True,
            refusal=with_draft.no_such_layers,
        ),
        contrasting("contrastive", one_token),
        contrasting("contrastive_lookahead", paper),
        contrasting("contrastive_auto", joined(*FAMILIES), warms=True),
    )
}
