"""Tokens that are sure to follow a text, as by a grammar, in its draft tree. Knows trees and requests; no grammar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lade.core.request import Request
from lade.core.tree import Draft

SOURCE = "forced"


def with_forced(request: Request, draft: Draft, depth: int) -> Draft:
    """A draft with the path of the tokens that must follow a request's text, as far as it has room.

    What the request's `forced` raises ends the request alone.

    Args:
        depth: the largest depth of a node.
    """
    if request.forced is None or not request.drafts:
        return draft
    try:
        tokens = request.forced(request.tokens)
    except Exception as error:  # noqa: BLE001 - user code may raise anything; other requests go on
        request.error, request.finished = error, True
        return draft
    room = max(0, request.max_nodes - len(draft))
    return _added(draft, tokens[:depth], room) if tokens else draft


def _added(draft: Draft, path: Sequence[int], room: int) -> Draft:
    """The draft with a path below the root; nodes that it has are shared, and at most `room` are new."""
    parent, shared = 0, 0
    while shared < len(path) and (child := draft.child(parent, path[shared])) is not None:
        parent, shared = child, shared + 1
    new = list(path[shared : shared + room])
    if not new:
        return draft
    size = len(draft)
    nodes = range(size, size + len(new))
    parents = [parent, *nodes[:-1]]
    depth = draft.depths[parent]
    return replace(
        draft,
        tokens=[*draft.tokens, *new],
        parents=[*draft.parents, *parents],
        depths=[*draft.depths, *range(depth + 1, depth + 1 + len(new))],
        queries=sorted({*draft.queries, *nodes, *_above(draft, parent)}),
        sources=[*draft.sources, *[SOURCE] * len(new)],
    )


def _above(draft: Draft, node: int) -> list[int]:
    """A node and those that it follows: a walk to the new ones needs their logits."""
    found = []
    while node >= 0:
        found.append(node)
        node = draft.parents[node]
    return found
