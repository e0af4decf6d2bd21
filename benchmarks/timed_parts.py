"""The parts of a run of `accelerator.py`, each on its own: what they find, what fails, what is skipped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lade.files.atomic import put_in_place


@dataclass
class Run:
    """The parts of a run, and the time that is left for them.

    Attributes:
        until: when no further part begins, by `time.monotonic`.
        output: written after each part, and after each way of `rates`, so that a run that is cut short leaves what it
            has found.
        found: results by part; one with the key "error" or "skipped" has no others.
    """

    model: Any
    prompts: list[list[int]]
    new_tokens: int
    contexts: Sequence[int]
    batch: int
    until: float
    output: Path | None = None
    found: dict[str, Any] = field(default_factory=dict)

    def part(self, name: str, work: Callable[[], Any]) -> None:
        began = time.monotonic()
        if began > self.until:
            self.found[name] = {"skipped": "no time was left"}
            return
        try:
            self.found[name] = work()
        except Exception as error:  # noqa: BLE001 - the other parts go on
            self.found[name] = {"error": told(error, 500)}
        self.found.setdefault("seconds", {})[name] = round(time.monotonic() - began, 2)
        self.save()

    def save(self) -> None:
        if self.output is not None:
            put_in_place(self.output, json.dumps(self.found, indent=2).encode())

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    def wait(self) -> float:
        """The time, once the device has done its work."""
        return waited(self.device)


def waited(device: torch.device) -> float:
    """The time, once a device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def told(error: Exception, most: int) -> str:
    """In one line of about so many characters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:most]}"
