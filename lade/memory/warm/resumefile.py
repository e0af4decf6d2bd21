"""A file of a partly done computation of a model, in the cache folder, from which an interrupted one resumes.

One file per configuration of a model and kind of computation. A damaged file, or one of another computation, of other
weights or versions, is removed. Knows a model by its configuration and fingerprint alone.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import torch

from lade.base.version import VERSION
from lade.facts.fingerprint import configuration_key, fingerprint
from lade.files.cachecontent import trim
from lade.files.cachefolder import NotKeptWarning, cache_folder
from lade.files.regularfile import AbsentFileError
from lade.files.safefile import read, write
from lade.memory.warm.file import MOST

Tensors = dict[str, torch.Tensor]
Part = TypeVar("Part")


class ResumeFile:
    """The file of one computation.

    Args:
        model: with the weights that the computation is of.
        ending: of the file's name, behind the configuration.
        described: what else makes two computations the same.
        content: what the file keeps, for the warning where a folder takes nothing.
    """

    def __init__(self, model: Any, ending: str, described: Mapping[str, str], content: str) -> None:
        self.path = cache_folder() / f"warmpart-{configuration_key(model)}{ending}.safetensors"
        self._description = {
            **described,
            "lade": VERSION,
            "fingerprint": fingerprint(model),
            "device": model.device.type,
        }
        self._content = content
        self._saved = time.perf_counter()

    def remove(self) -> None:
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _read(self, parsed: Callable[[Tensors, float], Part]) -> Part | None:
        """What the file holds of this computation; `None` where there is nothing of it.

        Args:
            parsed: makes it of tensors and of the seconds that it took; ValueError where it cannot.
        """
        try:
            tensors, metadata = read(self.path, MOST)
            seconds = float(metadata.pop("seconds", "nan"))
            if metadata != self._description or not 0 <= seconds < math.inf:
                raise ValueError("it must be of this computation")
            return parsed(tensors, seconds)
        except AbsentFileError:
            return None
        except (OSError, ValueError):
            self.remove()
            return None

    def _write(self, tensors: Tensors, seconds: float) -> None:
        """A folder that cannot be written to is a warning."""
        try:
            write(self.path, tensors, self._description | {"seconds": repr(seconds)}, MOST)
            trim(self.path)
        except OSError as error:
            warnings.warn(f"lade keeps no {self._content}: {error}", NotKeptWarning, stacklevel=3)
