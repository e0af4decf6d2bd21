"""The Jacobi window of the paper's lookahead branch (arXiv 2402.02057), of W columns and N - 1 levels.

    position   r     r+1   r+2   r+3   r+4           W = 4, N = 4: levels 0 .. N-2
    level 0   root --- a --- b --- c                 each step's output is a new last level:
    level 1     '-- d  '- e  '- f  '- g              column i yields the n-gram  level0[i] level1[i] level2[i] new[i]
    level 2         '-- h  '- i  '- j  '- k          and every level then moves up by one, one column to the left.

The parent of a token is its left neighbour on level 0 and the token above it on the others, so the window is a tree
under the root like any n-gram, and children of the root are candidates too. Knows tokens and trees, no model.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from lade.core.tree import TreeBuilder


class Window:
    """The window of one request.

    Args:
        prompt: tokens that fill the window at the start and empty columns later.
        width: W, most columns.
        ngram: N.
        seed: of the private generator that draws from the prompt.
    """

    def __init__(self, prompt: Sequence[int], width: int, ngram: int, seed: int) -> None:
        self.prompt, self.width, self.ngram = prompt, width, ngram
        self._noise = random.Random(seed)
        # levels[0] holds W-1 tokens (the root comes before them), the other N-2 levels hold W each.
        self.levels = [self._noise.choices(prompt, k=width - (level == 0)) for level in range(ngram - 1)]
        self.outputs: list[int] = []  # this step's last-level nodes, one per column

    def nodes(self, columns: int) -> int:
        """Number of nodes of these columns, without the root."""
        return max(0, columns * (self.ngram - 1) - 1)

    def add(self, builder: TreeBuilder, columns: int) -> None:
        """Add the first columns under the root, and query the logits of their outputs and candidates."""
        self.outputs = []
        if columns < 1:
            return
        nodes = [0]
        for token in self.levels[0][: columns - 1]:
            nodes.append(builder.add(nodes[-1], token, "window"))
        builder.queries.update(nodes[: self.ngram])
        for level in self.levels[1:]:
            nodes = [builder.add(above, token, "window") for above, token in zip(nodes, level, strict=False)]
            builder.queries.add(nodes[0])
        builder.queries.update(nodes)
        self.outputs = nodes

    def grams(self, root: int, new: Sequence[int]) -> Iterable[tuple[int, ...]]:
        """The n-grams of this step, one per column."""
        return zip([root, *self.levels[0]], *self.levels[1:], new, strict=False)

    def shift(self, new: list[int], columns: int, width: int | None = None) -> None:
        """Move every level up and `columns` to the left in total; tokens of the prompt fill empty columns.

        Args:
            new: the model's greedy tokens after `outputs`; nothing moves if it is empty.
            width: new number of columns, at least 1 (0 ends the window); `None` keeps it.
        """
        self.width = self.width if width is None else width
        if not new or self.width < 1:
            return
        levels = [*self.levels, new][1:]
        self.levels = [self._filled(level[columns - 1 :]) for level in levels]
        del self.levels[0][0]

    def _filled(self, level: list[int]) -> list[int]:
        return level[: self.width] + self._noise.choices(self.prompt, k=max(0, self.width - len(level)))
