"""From a loaded model to a service that answers for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lade
from lade.applications.serve.corpora import Corpora
from lade.applications.serve.grammar import Grammars
from lade.applications.serve.image_prompts import ImagePrompts
from lade.applications.serve.metrics import Metrics
from lade.applications.serve.plan import Planner
from lade.applications.serve.prompts import Prompts, positions_of
from lade.applications.serve.service import Service, ends_of
from lade.applications.serve.settings import ServeSettings
from lade.facts.vocabulary import readable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FEWEST = 2  # tokens: one of a prompt, one of its answer


def build_service(
    settings: ServeSettings,
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    *,
    config: lade.LookaheadConfig | None = None,
    method: Any = None,
    kv_bytes: int | None = None,
    processor: Any = None,
) -> Service:
    """A service that is not started yet.

    Args:
        config, method, kv_bytes: as of `lade.Engine`.
        processor: makes the model's inputs of texts and images, as `lade.models.processor` loads it; `None` where
            messages with images are refused.

    Raises:
        ValueError: the model cannot decode draft trees, or an argument is wrong.
    """
    engine = lade.Engine(model, config, method=method, slots=settings.slots, kv_bytes=kv_bytes)
    within = engine.kv_tokens
    positions = positions_of(model) if within is None else min(positions_of(model), within)
    if positions < FEWEST:
        engine.close()
        raise ValueError(f"kv_bytes must have room for at least {FEWEST} tokens, got {kv_bytes}, which has {positions}")
    vocabulary, ends = readable(model), ends_of(model)
    images = None if processor is None else ImagePrompts(processor, model)
    prompts, grammars = Prompts(tokenizer, positions, vocabulary, images), Grammars(tokenizer, vocabulary, ends)
    auto = method is None and (config or lade.LookaheadConfig()).settled().mode == "auto"
    corpora = Corpora(prompts.of_document, settings.corpus_tokens if auto else 0)
    metrics = Metrics()
    service = Service(settings, engine, Planner(prompts, grammars, ends, model.device, auto), corpora, metrics)
    metrics.watch("lade_texts", "Texts that decode or wait.", lambda: service.texts)
    metrics.watch("lade_corpus_tokens", "Tokens of added corpora.", lambda: corpora.total)
    return service
