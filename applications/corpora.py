"""From texts to a corpus: what `lade corpus` and a server share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import lade

ALOUD = 20_000  # tokens from which on machine code is awaited


def tokenised(texts: Iterable[str], tokens_of: Callable[[str], list[int]], most: int) -> list[list[int]]:
    """Token ids of each text alone, empty ones left out; none is read behind more than `most` tokens."""
    found, number = list[list[int]](), 0
    for text in texts:
        tokens = tokens_of(text)
        found += [tokens] if tokens else []
        number += len(tokens)
        if number > most:
            break
    return found


def made(texts: Sequence[Sequence[int]]) -> lade.Corpus:
    """The corpus of texts; a large one is made with machine code, without which it takes long."""
    import lade
    from lade.drafters import compiling
    from lade.entry.warming import begin_compiling

    if sum(map(len, texts)) > ALOUD:
        begin_compiling()
        compiling.wait()
    return lade.Corpus(texts)
