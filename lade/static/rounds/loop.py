"""The host's side of rounds: one copy to the device, rounds without a wait, one copy back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from lade.memory.context import NOTHING
from lade.static.graphs import capture
from lade.static.readback import Readback
from lade.static.rounds.recall import LONGEST
from lade.static.rounds.step import PER_ROW, RoundStep


class Place(NamedTuple):
    """Where a row is, before some rounds.

    Attributes:
        text: of the request so far, whose last token is not in the slot yet.
        left: tokens that it may still emit.
        emitted: tokens that it has emitted, for its noise.
    """

    slot: int
    text: Sequence[int]
    left: int
    emitted: int = 0


class DeviceLoop:
    """Runs rounds of one step, as a captured graph on a CUDA device.

    Args:
        step: none of whose slots is in a round.
    """

    def __init__(self, step: RoundStep) -> None:
        self.step = step
        device = step.left.device
        on_cuda = device.type == "cuda"
        self._told = torch.zeros(step.rows, PER_ROW, dtype=torch.long, pin_memory=on_cuda)
        self._back = Readback(torch.cuda.Event() if on_cuda else None)  # type: ignore[no-untyped-call]
        self._round: Callable[[], object] = step.round
        self._resume: Callable[[], object] = step.resume
        self._ready = False

    @torch.no_grad()
    def prepare(self) -> None:
        """Compile what is to be fused, and capture, once, while no slot is in a round.

        Raises:
            RuntimeError, NotImplementedError: the model's forward pass cannot be.
        """
        if not self._ready:
            step = self.step
            step.idle(step.visit)  # so that these runs change no slot
            step.resume()
            step.round()
            if step.left.device.type == "cuda":
                self._resume, pool = capture(step.resume, step.left.device)
                self._round, _ = capture(step.round, step.left.device, pool)
            self._ready = True

    @torch.no_grad()
    def run(self, places: Sequence[Place], rounds: int) -> np.ndarray:
        """So many rounds; the slots then hold all but the last token of each text.

        Returns:
            [rounds, R, T, 4 + 2k] int32, `RoundStep.found`, until the next call.

        Raises:
            ValueError: names the argument; nothing is computed then.
        """
        self._check(places, rounds)
        self._tell(places)
        self.prepare()
        self.step.visit.copy_(self._told, non_blocking=True)
        self._resume()
        for _ in range(rounds):
            self._round()
        found = self.step.found[:rounds]
        return self._back(found).reshape(rounds, self.step.rows, self.step.growing.nodes, -1)

    def _check(self, places: Sequence[Place], rounds: int) -> None:
        step = self.step
        if not 1 <= rounds <= step.rounds:
            raise ValueError(f"rounds must be from 1 to {step.rounds}, got {rounds}")
        if not 1 <= len(places) <= step.rows:
            raise ValueError(f"places must be from 1 to {step.rows}, got {len(places)}")
        needed = tokens_of(max(len(place.text) for place in places), rounds, step.growing.nodes, step.growing.depth)
        if needed > step.slots.capacity:
            raise ValueError(f"places must leave slots of {step.slots.capacity} tokens room, got a need of {needed}")

    def _tell(self, places: Sequence[Place]) -> None:
        self.step.idle(self._told)
        for row, place in enumerate(places):
            last = ([NOTHING] * LONGEST + list(place.text[-LONGEST:]))[-LONGEST:]
            self._told[row] = torch.tensor([place.slot, len(place.text) - 1, place.left, place.emitted, *last])


def tokens_of(longest: int, rounds: int, nodes: int, depth: int) -> int:
    """Room that a slot needs whose text is so long, for so many rounds of trees of this size."""
    return longest + rounds * (depth + 1) + nodes
