"""The methods that can be compared, one row each in `METHODS`; a new method needs only its row.

Knows how a method decodes; nothing of prompts, timing or reports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import lade
from lade.applications.bench import with_draft
from lade.applications.bench.companion import Companion
from lade.applications.bench.method import PLAIN, BenchMethod, Decode, MethodOptions
from lade.applications.options import corpus_error
from lade.base.shown import invalid
from lade.config.settings import FAMILIES

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

__all__ = ["METHODS", "PLAIN", "BenchMethod", "Decode", "MethodOptions", "plain"]

COMPILED = ("cuda", "xpu")  # devices on which transformers compiles by itself
TABLE: dict[str, Any] = {"has_stats": True, "uses_warm_table": True}
CONTRAST = ("contrast_weight", "contrast_alpha", "amateur_temperature", "vocabulary")


def plain(options: MethodOptions) -> Decode:
    return lambda model, **arguments: model.generate(**arguments)


def static(options: MethodOptions) -> Decode:
    """transformers' static cache, whose forward it compiles where it can."""

    def decode(model: PreTrainedModel, **arguments: Any) -> Tensor:
        plainly = not_compiled(model) is not None
        return model.generate(**arguments, cache_implementation="static", disable_compile=plainly)

    return decode


def not_compiled(model: PreTrainedModel) -> str | None:
    """Why transformers fills the static cache without compiling: no useful baseline, unless it is asked for by name."""
    if model.device.type not in COMPILED:
        return (
            f"transformers compiles its static cache on {' and '.join(COMPILED)} only; the model is on {model.device}"
        )
    return None if find_spec("triton") else "transformers compiles its static cache with triton, which is not installed"


def paper(options: MethodOptions) -> lade.LookaheadConfig:
    """The paper's algorithm."""
    return lade.LookaheadConfig(
        mode="lookahead",
        ngram=options.level,
        window=options.window,
        guesses=options.guesses,
        budget=options.budget,
        pool_from_prompt=options.pool_from_prompt,
        flash=options.use_flash,
    )


def one_token(options: MethodOptions) -> lade.LookaheadConfig:
    """No drafts."""
    return lade.LookaheadConfig(mode="auto", budget=1)


def joined(*sources: str) -> Callable[[MethodOptions], lade.LookaheadConfig]:
    """Mode auto with these sources; the warm table is used only if `options.warm` is set."""

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
            flash=options.use_flash,
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
        if "corpus" in sources:
            config = replace(config, corpus=options.corpus)

        def decode(model: PreTrainedModel, reference: Sequence[int] | None = None, **arguments: Any) -> Tensor:
            with lade.lookahead(model, config, reference=reference):
                return model.generate(**arguments)

        return decode

    return factory


def no_corpus(model: PreTrainedModel, options: MethodOptions, draft: Companion | None) -> str | None:
    return corpus_error(options.corpus, model)


def prompt_lookup(options: MethodOptions) -> Decode:
    if options.lookup_tokens < 1:
        raise invalid("lookup_tokens", "at least 1", options.lookup_tokens)

    def decode(model: PreTrainedModel, **arguments: Any) -> Tensor:
        sequences: Tensor = lade.prompt_lookup_generate(model, draft_tokens=options.lookup_tokens, **arguments)
        return sequences

    return decode


def wrong(options: MethodOptions) -> Decode:
    from lade.applications.bench.wrong import wrong as factory

    return factory(options)


def with_model(name: str, factory: Callable[[MethodOptions], Decode], **more: Any) -> BenchMethod:
    """A row whose method drafts with the second model."""
    given: dict[str, Any] = {"needs": ("draft",), "takes_draft": True, "has_stats": True, "refusal": with_draft.no_pair}
    return BenchMethod(name, factory, **given | more)


def contrasting(name: str, configure: Callable[[MethodOptions], lade.LookaheadConfig], **more: Any) -> BenchMethod:
    """A row that contrasts two models: another distribution, with the plain row `contrastive` as the baseline."""
    given = {"compared_with": "contrastive", "distribution": CONTRAST, "refusal": with_draft.no_contrast}
    return with_model(name, with_draft.contrastive(configure), **given | more)


METHODS = {
    method.name: method
    for method in (
        BenchMethod(PLAIN, plain, default=True, baseline=True),
        BenchMethod("static", static, default=True, baseline=True, full_warmup=True, unless_named=not_compiled),
        BenchMethod("lookahead", lookahead, default=True, has_stats=True),
        BenchMethod("auto", drafting_from(*FAMILIES), default=True, takes_reference=True, refusal=no_corpus, **TABLE),
        BenchMethod("recycled", drafting_from("recycled", "warm"), **TABLE),
        BenchMethod("suffix", drafting_from("suffix"), has_stats=True),
        BenchMethod("wrong", wrong, needs=("reference",), has_stats=True, takes_reference=True),
        BenchMethod("prompt_lookup", prompt_lookup, default=True, takes_batches=False, has_stats=True),
        with_model("draft", with_draft.draft),
        with_model("multi_candidate", with_draft.multi_candidate),
        with_model("assisted", with_draft.assisted, takes_batches=False, refusal=with_draft.no_assistant),
        BenchMethod(
            "self_speculative",
            with_draft.self_speculative,
            needs=("skip",),
            has_stats=True,
            refusal=with_draft.no_such_layers,
        ),
        contrasting("contrastive", one_token),
        contrasting("contrastive_lookahead", paper),
        contrasting("contrastive_auto", joined(*FAMILIES), uses_warm_table=True),
    )
}
