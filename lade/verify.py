"""The walk that verifies a draft and emits its tokens: both in one, since processors and stop rules decide it.

For drafts chosen with certainty: choose once per visited node as plain decoding would, then follow the child that
carries the chosen token. Every emitted token is the model's own choice, so greedy and sampled text are those of plain
decoding, and a full match of d tokens yields d + 1.
"""

from __future__ import annotations

from collections.abc import Callable

from lade.request import Verdict
from lade.tree import Draft


def walk(draft: Draft, choose: Callable[[int], int], emit: Callable[[int], bool]) -> Verdict:
    """Follow the model's choices from the root.

    Args:
        draft: the verified draft; a node outside its queries ends the walk, as no logits speak for it.
        choose: node -> the token that plain decoding would choose after it.
        emit: takes the next token of the text; True means that the request is finished.
    """
    queried = set(draft.queries)
    path, tokens = [0], []
    while True:
        token = choose(path[-1])
        tokens.append(token)
        if emit(token):
            break
        child = draft.children.get((path[-1], token))
        if child is None or child not in queried:
            break
        path.append(child)
    return Verdict(path, tokens)
