"""Stop strings as a stopping criterion of transformers: it ends an answer with the token that completes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import StoppingCriteria

from lade.applications.serve.text import Detokenizer, StopSearch


class StopText(StoppingCriteria):
    """Ends one answer at a stop string. Only the answer is searched, each token once.

    Args:
        prompt: the tokens before the answer.
        stops: texts of at least one character.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._text, self._search = Detokenizer(tokenizer, prompt), StopSearch(stops)
        self._seen = len(prompt)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """[1] bool, whether the text of [1, P + emitted] ids has a stop string."""
        for token in input_ids[0, self._seen :].tolist():
            self._search.add(self._text.add(token))
        self._seen = input_ids.shape[1]
        return torch.tensor([self._search.found], device=input_ids.device)
