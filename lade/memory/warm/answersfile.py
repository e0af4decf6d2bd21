"""The file of answers to some of a user's prompts: an interrupted computation resumes from it."""

from __future__ import annotations

import time
from typing import Any

import torch

from lade.facts.vocabulary import readable
from lade.memory.context import NOTHING
from lade.memory.warm.answers import AnswerPlan, no_answers
from lade.memory.warm.resumefile import ResumeFile, Tensors
from lade.memory.warm.texts import WarmTexts

KIND, FORMAT = "answers for a warm table", "1"
PAUSE = 10.0  # least seconds between two saves
DTYPES = {"written": torch.int32, "tokens": torch.int32, "probabilities": torch.float32, "counted": torch.uint8}


class AnswersFile(ResumeFile):
    """The file of one computation.

    Args:
        prompts: a hash of the prompts and of how they are answered.
    """

    def __init__(self, model: Any, plan: AnswerPlan, prompts: str) -> None:
        described = {"kind": KIND, "format": FORMAT, "prompts": prompts}
        super().__init__(model, "-answers", described, "answers for the warm table")
        self._plan, self._vocabulary = plan, readable(model)

    def load(self) -> tuple[WarmTexts, float]:
        """The answers in the file, and the seconds that they took; none where it is not of this computation."""
        found = self._read(lambda tensors, seconds: (self._texts(tensors), seconds))
        return (no_answers(self._plan), 0.0) if found is None else found

    def save(self, texts: WarmTexts, seconds: float) -> None:
        """Write the file; a folder that cannot be written to is a warning."""
        if len(texts.written):
            self._write({name: getattr(texts, name).to(dtype) for name, dtype in DTYPES.items()}, seconds)

    def save_now_and_then(self, texts: WarmTexts, seconds: float) -> None:
        """Save where the last time is long ago: a killed process loses a bounded time of work."""
        if time.perf_counter() - self._saved >= PAUSE:
            self.save(texts, seconds)
            self._saved = time.perf_counter()

    def _texts(self, tensors: Tensors) -> WarmTexts:
        """ValueError if `save` cannot have written these by this plan."""
        plan, rows = self._plan, len(tensors["written"]) if "written" in tensors else 0
        number = len(plan.prompts)
        whole = rows == number or (rows < number and rows % plan.side_by_side == 0)
        expected = {name: getattr(no_answers(plan, rows), name).shape for name in DTYPES}
        if {name: tensor.shape for name, tensor in tensors.items()} != expected or not whole:
            raise ValueError("its answers must be those of the plan")
        if any(tensors[name].dtype != dtype for name, dtype in DTYPES.items()):
            raise ValueError("its answers have the wrong dtypes")
        written, tokens, likely, counted = (tensors[name] for name in DTYPES)
        ids = (written >= NOTHING) & (written < self._vocabulary)
        said = (tokens >= 0) & (tokens < self._vocabulary) & (likely >= 0) & (likely <= 1)
        if not ids.all() or not said.all() or (counted > 1).any():
            raise ValueError("it must hold token ids of the model and probabilities")
        return WarmTexts(written, tokens, likely, counted.bool())
