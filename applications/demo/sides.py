"""The two ways that a demo compares, one forward at a time: plain greedy decoding, and an engine of lade."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

import lade

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GREEDY: dict[str, Any] = {
    "do_sample": False,
    "temperature": None,
    "top_k": None,
    "top_p": None,
    "repetition_penalty": 1.0,
}


class Side(Protocol):
    """One way to decode; the first step reads the prompt and gives the first token."""

    def step(self) -> list[int]:
        """The tokens of the next forward; none at the end."""
        ...


class Plain:
    """One token per forward, through the model alone: what `model.generate` does, without its overhead per token.

    Args:
        prompt: [1, P] token ids.
        most: new tokens.
    """

    def __init__(self, model: PreTrainedModel, prompt: torch.Tensor, most: int) -> None:
        from transformers import DynamicCache

        self._model, self._ids, self._left = model, prompt, most
        self._cache = DynamicCache(config=model.config)
        self._ends = ends_of(model)
        self._last = {"logits_to_keep": 1} if model._supports_logits_to_keep() else {}

    @torch.no_grad()
    def step(self) -> list[int]:
        if not self._left:
            return []
        output = self._model(self._ids, past_key_values=self._cache, use_cache=True, **self._last)
        self._ids = output.logits[:, -1:].argmax(-1)  # [1, 1]
        token = int(self._ids)
        self._left = 0 if token in self._ends else self._left - 1
        return [token]


class Lookahead:
    """Several tokens per forward: `lade.Engine` with the process-wide settings.

    Args:
        prompt: [1, P] token ids.
        most: new tokens.
        tenant: whose texts drafting learns from.
    """

    def __init__(self, model: PreTrainedModel, prompt: torch.Tensor, most: int, tenant: str) -> None:
        self._engine = lade.Engine(model, slots=1, prefix_bytes=0)
        self._request = self._engine.submit(prompt, tenant=tenant, max_new_tokens=most, **GREEDY)
        self._read = prompt.shape[1]

    def step(self) -> list[int]:
        while not self._request.finished:
            self._engine.step()
            found = self._request.tokens[self._read :]
            if found:
                self._read += len(found)
                return found
        if self._request.error is not None:
            raise self._request.error
        return []


def ends_of(model: PreTrainedModel) -> frozenset[int]:
    """The tokens that end a text."""
    found = model.generation_config.eos_token_id if model.generation_config is not None else None
    return frozenset(found if isinstance(found, list) else [] if found is None else [found])
