"""A way of drafting that grows random trees, whatever was learned: some of their paths are the text that is to come.

Every shape of tree comes up: chains, bushes, roots alone, nodes whose logits nobody asks for, tokens nobody chooses.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from lade.core.request import Request, Verdict
from lade.core.tree import Draft, TreeBuilder

MOST = 24  # nodes of a tree, the root included
RIGHT = 0.6  # how often a node that hangs from the right path goes on with it
ASKED = 0.8  # how often a node's logits are wanted


class RandomTrees:
    """A method (`lade.engine.method.Method`) and the drafter that it makes.

    Args:
        texts: per row the tokens that plain decoding emits.
        words: token ids that stand in drafts.
        seed: decides every tree.
    """

    likeliest = True

    def __init__(self, texts: Sequence[Sequence[int]], words: range, seed: int) -> None:
        self.texts, self.words, self.seed = texts, words, seed
        self.sizes: set[int] = set()

    def check(self, target: Any) -> None:
        """Any model is fine."""

    def reason(self, call: Any) -> None:
        """Every call is fine."""

    def drafter(self, call: Any, target: Any) -> "RandomTrees":
        self.random = random.Random(self.seed)
        return self

    def start(self, request: Request) -> None:
        pass

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        drafts = [self._tree(request, deepest) for request, deepest in zip(requests, depths, strict=True)]
        self.sizes |= set(map(len, drafts))
        return drafts

    def _tree(self, request: Request, deepest: int) -> Draft:
        tree = TreeBuilder(request.tokens[-1])
        coming = self.texts[request.row][request.emitted :]
        right = {0: 0}  # nodes of the right path, and how many of the coming tokens they have behind them
        for _ in range(self.random.randrange(MOST)):
            parent = self.random.randrange(len(tree.tokens))
            if tree.depths[parent] >= deepest or len(tree.tokens) >= request.max_nodes:
                continue
            reached = right.get(parent, len(coming))
            goes_on = reached < len(coming) and self.random.random() < RIGHT
            node = tree.add(parent, coming[reached] if goes_on else self.random.choice(self.words), "random")
            if goes_on:
                right[node] = reached + 1
        tree.queries |= {node for node in range(1, len(tree.tokens)) if self.random.random() < ASKED}
        return tree.build()

    def observe(
        self, requests: Sequence[Request], drafts: Sequence[Draft], verdicts: Sequence[Verdict], predictions: Any
    ) -> None:
        pass

    def pause(self) -> None:
        """Nothing is timed."""

    def stop(self, request: Request) -> None:
        pass

    def end(self) -> Mapping[str, int]:
        return {}
