"""Stop strings as a stopping criterion of transformers: it ends an answer with the token that completes one."""

from __future__ import annotations

from typing import Any

import torch
from transformers import StoppingCriteria

from lade.applications.serve.text import AnswerText


class StopText(StoppingCriteria):
    """Ends one answer at a stop string. Only the answer is searched, each token once.

    Args:
        text: of the answer; the criterion adds the tokens to it.
        prompt_length: tokens before the answer.
    """

    def __init__(self, text: AnswerText, prompt_length: int) -> None:
        self._text, self._prompt_length = text, prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """[1] bool, whether the text of [1, P + emitted] ids has a stop string."""
        known = len(self._text.places)
        for number, token in enumerate(input_ids[0, self._prompt_length + known :].tolist(), known):
            self._text.add(number, token)
        return torch.tensor([self._text.search.found], device=input_ids.device)
