"""A second, smaller model as the draft model, with a KV cache of its own, in which each request has a row.

After a step the cache keeps the nodes of the accepted path that were computed; the first forward of the next step
computes the others. Knows targets and requests, not how candidates are chosen. M nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import torch

from lade.core.request import Request, Verdict
from lade.core.tree import TreeBuilder
from lade.drafters.branch import UNLIMITED, Branch, expand
from lade.target.growth import read
from lade.target.model import HFTarget


class SecondModel:
    """A draft model.

    Args:
        draft: the model with an empty cache; the text of a request is read when its first draft is asked for.
        known: vocabulary entries that the draft model can read.
        vocabulary: entries that the target can read. A token that only one of the two can read is never drafted.
        width: V, of the target's logits.
        device: of the target's logits.
    """

    def __init__(self, draft: HFTarget, known: int, vocabulary: int, width: int, device: torch.device) -> None:
        self.draft, self.known, self.vocabulary, self.width, self.device = draft, known, vocabulary, width, device
        self.rows: list[tuple[Request, int]] = []  # the requests that it drafts for, and their slots
        self.slots: list[int] = []  # of the rows
        self.branches: list[Branch] = []  # of the rows

    def begin(self, requests: Sequence[Request]) -> list[Branch]:
        self._leave([request for request, _ in self.rows if self._left(request) < 0])
        known = {id(request) for request, _ in self.rows}
        self._join([request for request in requests if id(request) not in known and self._left(request) >= 0])
        self.slots = [slot for _, slot in self.rows]
        self.branches = [self._branch(request, slot) for request, slot in self.rows]
        found = {id(request): branch for (request, _), branch in zip(self.rows, self.branches, strict=True)}
        # A text longer than the draft model's positions gets an empty draft.
        return [found.get(id(request)) or Branch(TreeBuilder(0), 0, 0) for request in requests]

    def _join(self, requests: Sequence[Request]) -> None:
        """Read the texts of new requests but for the last token, which is the first root."""
        used = {slot for _, slot in self.rows}
        free = (slot for slot in count() if slot not in used)
        joining = list(zip(requests, free, strict=False))
        for request, slot in joining:
            self.draft.open(slot, len(request.tokens), request.prompt_length + request.limit)
        read(self.draft, [slot for _, slot in joining], [self._readable(request.tokens[:-1]) for request in requests])
        self.rows += joining

    def stop(self, request: Request) -> None:
        self._leave([request])

    def _leave(self, requests: Sequence[Request]) -> None:
        """Close the slots of requests, where they have one."""
        for request, slot in self.rows:
            if request in requests:
                self.draft.close(slot)
        self.rows = [row for row in self.rows if row[0] not in requests]

    def _left(self, request: Request) -> int:
        """Positions left after the request's last token."""
        limit = self.draft.position_limit
        return UNLIMITED if limit is None else limit - len(request.tokens)

    def _branch(self, request: Request, slot: int) -> Branch:
        waiting = self._readable(request.tokens[self.draft.positions[slot] :])
        tree = TreeBuilder(waiting[0])
        root = tree.add_path(0, waiting[1:], "root")
        deepest = self._left(request) + 1  # a leaf is not computed, so it needs no position
        return Branch(tree, root, deepest, self.draft.max_nodes(self.slots) - root)

    def _readable(self, tokens: Sequence[int]) -> list[int]:
        return [token if token < self.known else 0 for token in tokens]

    def expand(self, branches: Sequence[Branch]) -> torch.Tensor:
        return fitted(
            expand(self.draft, self.slots, self.branches, branches).to(self.device), self.vocabulary, self.width
        )

    def keep(self, requests: Sequence[Request], branches: Sequence[Branch], verdicts: Sequence[Verdict]) -> None:
        if self.branches:
            found = {id(branch): verdict.path for branch, verdict in zip(branches, verdicts, strict=True)}
            self.draft.keep(self.slots, [_computed(branch, found.get(id(branch), ())) for branch in self.branches])


def _computed(branch: Branch, path: Sequence[int]) -> list[int]:
    """The nodes that the cache keeps: accepted tokens above the root, then those of the path that were computed."""
    if not branch.computed:
        return []
    accepted = (branch.root + node for node in path[1:])
    return [*range(branch.root + 1), *(node for node in accepted if node < branch.computed)]


def fitted(logits: torch.Tensor, vocabulary: int, width: int) -> torch.Tensor:
    """[M, width] logits; -inf for tokens that one of the two models cannot read."""
    known = logits[:, :vocabulary]
    missing = width - known.shape[-1]
    return torch.nn.functional.pad(known, (0, missing), value=-torch.inf) if missing else known
