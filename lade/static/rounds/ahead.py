"""Steps that the device has made and the decode loop has not asked for yet. R rows, T nodes, k tokens of a top-k."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from lade.core.request import Request
from lade.core.tree import Draft
from lade.static.inputs import NEVER
from lade.static.outputs import lines_of
from lade.static.rounds.step import TREE
from lade.static.step import NOT_A_NUMBER
from lade.static.walking import RIGHT
from lade.target.outputs import Outputs

SOURCE = "device"


class Ahead:
    """In order, each for the texts that the steps before it leave.

    Args:
        requests: a row each.
        steps: [R, T, 4 + 2k] of each step.
    """

    def __init__(self, requests: Sequence[Request] = (), steps: Iterable[np.ndarray] = ()) -> None:
        self._steps = deque(steps)
        self._rows = {request: row for row, request in enumerate(requests)}
        self._lengths = {request: len(request.tokens) for request in requests}

    def fits(self, requests: Sequence[Request]) -> bool:
        """Whether there is a step for these texts."""
        return bool(self._steps) and all(self._lengths.get(each) == len(each.tokens) for each in requests)

    def next(self, requests: Sequence[Request]) -> Step:
        """The next step of these requests."""
        step = Step(self._steps.popleft()[[self._rows[request] for request in requests]])
        for request, accepted in zip(requests, step.accepted, strict=True):
            self._lengths[request] += accepted
        return step


class Step:
    """One step.

    Args:
        nodes: [R, T, 4 + 2k].

    Attributes:
        accepted: of each row, how many nodes, after each of which a token is emitted; 0 where the device has stopped
            it: at its last position, or as there is NaN.
        with_nan: rows with NaN in their logits.
    """

    def __init__(self, nodes: np.ndarray) -> None:
        self._nodes, flags = nodes, nodes[:, :, TREE + 1]
        right = (flags & RIGHT) > 0
        self.accepted: list[int] = (right.sum(1) * right[:, 0]).tolist()
        self.with_nan: list[int] = np.flatnonzero((flags & NOT_A_NUMBER).any(1)).tolist()

    def read(self) -> tuple[list[Draft], Outputs]:
        """The drafts, and what was computed."""
        drafts = [_tree(row) for row in self._nodes]
        return drafts, _outputs(self._nodes, drafts)


def _tree(nodes: np.ndarray) -> Draft:
    """The tree of [T, 4 + 2k] nodes, without those that fill it up, which are the last ones."""
    tokens, parents = nodes[:, 0].tolist(), nodes[:, 1].tolist()
    size = tokens.index(NEVER) if NEVER in tokens else len(tokens)
    depths = [0]
    for parent in parents[1:size]:
        depths.append(depths[parent] + 1)
    sources = ["root", *[SOURCE] * (size - 1)]
    return Draft(tokens[:size], [-1, *parents[1:size]], depths, list(range(size)), sources)


def _outputs(step: np.ndarray, drafts: Sequence[Draft]) -> Outputs:
    """Of [R, T, 4 + 2k] nodes."""
    table = np.concatenate([nodes[: len(draft), TREE:] for nodes, draft in zip(step, drafts, strict=True)])
    table[:, 1] &= NOT_A_NUMBER
    return Outputs.read(lines_of(drafts), table)
