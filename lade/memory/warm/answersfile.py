"""The file of answers to some of a user's prompts, in the cache folder: an interrupted computation resumes from it.

One file per configuration of a model. A damaged file, or one of other prompts, weights or versions, is removed.
"""

from __future__ import annotations

import math
import time
import warnings
from contextlib import suppress
from typing import Any

import torch

from lade.base.version import VERSION
from lade.facts.fingerprint import configuration_key, fingerprint
from lade.facts.vocabulary import readable
from lade.files.cachecontent import trim
from lade.files.cachefolder import CacheWarning, cache_folder
from lade.files.regularfile import AbsentFileError
from lade.files.safefile import read, write
from lade.memory.recycle import NOTHING
from lade.memory.warm.answers import AnswerPlan, no_answers
from lade.memory.warm.file import MOST
from lade.memory.warm.texts import WarmTexts

KIND, FORMAT = "answers for a warm table", "1"
PAUSE = 10.0  # least seconds between two saves
DTYPES = {"written": torch.int32, "tokens": torch.int32, "probabilities": torch.float32, "counted": torch.uint8}


class AnswersFile:
    """The file of one computation.

    Args:
        prompts: a hash of the prompts and of how they are answered.
    """

    def __init__(self, model: Any, plan: AnswerPlan, prompts: str) -> None:
        self.path = cache_folder() / f"warmpart-{configuration_key(model)}-answers.safetensors"
        self._plan, self._vocabulary, self._saved = plan, readable(model), time.perf_counter()
        self._description = {
            "kind": KIND,
            "format": FORMAT,
            "lade": VERSION,
            "fingerprint": fingerprint(model),
            "device": model.device.type,
            "prompts": prompts,
        }

    def load(self) -> tuple[WarmTexts, float]:
        """The answers in the file, and the seconds that they took; none where it is not of this computation."""
        try:
            tensors, metadata = read(self.path, MOST)
            seconds = float(metadata.pop("seconds", "nan"))
            if metadata != self._description or not 0 <= seconds < math.inf:
                raise ValueError("it must hold answers of this computation")
            return self._texts(tensors), seconds
        except AbsentFileError:
            pass
        except (OSError, ValueError):
            self.remove()
        return no_answers(self._plan), 0.0

    def save(self, texts: WarmTexts, seconds: float) -> None:
        """Write the file; a folder that cannot be written to is a warning."""
        if not len(texts.written):
            return
        tensors = {name: getattr(texts, name).to(dtype) for name, dtype in DTYPES.items()}
        try:
            write(self.path, tensors, self._description | {"seconds": repr(seconds)}, MOST)
            trim(self.path)
        except OSError as error:
            warnings.warn(f"lade keeps no answers for the warm table: {error}", CacheWarning, stacklevel=2)

    def save_now_and_then(self, texts: WarmTexts, seconds: float) -> None:
        """Save where the last time is long ago: a killed process loses a bounded time of work."""
        if time.perf_counter() - self._saved >= PAUSE:
            self.save(texts, seconds)
            self._saved = time.perf_counter()

    def remove(self) -> None:
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _texts(self, tensors: dict[str, torch.Tensor]) -> WarmTexts:
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
