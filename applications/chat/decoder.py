"""Decodes the answers of a conversation, one after another: with an engine, which keeps the KV cache of earlier turns.

A model that cannot decode draft trees answers through `model.generate`. Knows no messages and no terminal.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from lade.applications.chat.streamer import StepStreamer

KEPT_BYTES = 1 << 31  # of keys and values of earlier turns
TENANT = "chat"


@dataclass(frozen=True)
class Decoded:
    """An answer's tokens, and their cost.

    Attributes:
        tokens: new token ids.
        steps: forwards after the prefill.
        cached: prompt tokens that were in the KV cache.
        seconds: prefill and decoding.
        accepted: source of drafts -> accepted tokens.
        interrupted: whether the user stopped it.
    """

    tokens: list[int]
    steps: int
    cached: int
    seconds: float
    accepted: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False


class Decoder(Protocol):
    """Decodes one prompt at a time."""

    @property
    def reason(self) -> str | None:
        """Why it does not draft; `None` where it does."""
        ...

    def decode(
        self,
        input_ids: Tensor,
        streamer: StepStreamer,
        stopped: Callable[[], bool],
        *,
        drafts: bool = True,
        tenant: str = TENANT,
        seed: int | None = None,
        **generate_kwargs: Any,
    ) -> Decoded:
        """Decode a prompt.

        Args:
            input_ids: [1, P] token ids.
            stopped: asked after each step; true ends the answer.
            drafts: whether to draft; one token per forward otherwise.
            tenant: who shares the KV cache and what drafting learned.
            generate_kwargs: arguments of `model.generate`.
        """
        ...

    def forget(self, tenant: str = TENANT) -> None:
        """Drop the KV cache of a tenant's texts."""
        ...


class EngineDecoder:
    """Decodes with `lade.Engine`.

    Args:
        method: drafts with a model (`lade.DraftModel`).

    Raises:
        ValueError: the model cannot decode draft trees, or the method does not go with it.
    """

    reason = None

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, method: Any = None) -> None:
        import lade

        self._tokenizer = tokenizer
        self._engine = lade.Engine(model, method=method, slots=1, prefix_bytes=KEPT_BYTES)

    def decode(
        self,
        input_ids: Tensor,
        streamer: StepStreamer,
        stopped: Callable[[], bool],
        *,
        drafts: bool = True,
        tenant: str = TENANT,
        seed: int | None = None,
        **generate_kwargs: Any,
    ) -> Decoded:
        engine, start, interrupted = self._engine, time.perf_counter(), False
        request = engine.submit(
            input_ids,
            seed=seed,
            streamer=streamer,
            tokenizer=self._tokenizer,
            tenant=tenant,
            drafts=drafts,
            **generate_kwargs,
        )
        try:
            while not interrupted and engine.step():
                interrupted = stopped()
        finally:
            engine.cancel(request)
            engine.run()
        if request.error is not None:
            raise request.error
        streamer.end()
        seconds, tokens = time.perf_counter() - start, request.tokens[request.prompt_length :]
        accepted: Counter[str] = request.tally.accepted
        return Decoded(tokens, max(streamer.steps - 1, 0), request.cached, seconds, dict(accepted), interrupted)

    def forget(self, tenant: str = TENANT) -> None:
        self._engine.drop_prefixes(tenant)


class PlainDecoder:
    """Decodes with `model.generate`, which computes the whole prompt each time.

    Args:
        reason: why no engine does.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, reason: str) -> None:
        self._model, self._tokenizer, self.reason = model, tokenizer, reason

    def decode(
        self,
        input_ids: Tensor,
        streamer: StepStreamer,
        stopped: Callable[[], bool],
        *,
        drafts: bool = True,
        tenant: str = TENANT,
        seed: int | None = None,
        **generate_kwargs: Any,
    ) -> Decoded:
        import torch
        from transformers import StoppingCriteriaList

        if seed is not None:
            torch.manual_seed(seed)
        interrupted = False

        def stop(ids: Tensor, scores: Any, **_: Any) -> Tensor:
            nonlocal interrupted
            interrupted = interrupted or stopped()
            return torch.full((len(ids),), interrupted, device=ids.device)

        start, length = time.perf_counter(), input_ids.shape[1]
        output = self._model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            streamer=streamer,
            tokenizer=self._tokenizer,
            stopping_criteria=StoppingCriteriaList([stop]),
            **generate_kwargs,
        )
        tokens = output[0, length:].tolist()
        return Decoded(tokens, max(len(tokens) - 1, 0), 0, time.perf_counter() - start, interrupted=interrupted)

    def forget(self, tenant: str = TENANT) -> None:
        """Nothing is kept."""


def decoder_for(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, method: Any = None) -> Decoder:
    """An engine where the model can decode draft trees. ValueError where a method does not go with the model."""
    try:
        return EngineDecoder(model, tokenizer, method)
    except ValueError as error:
        if method is not None:
            raise
        return PlainDecoder(model, tokenizer, str(error))
