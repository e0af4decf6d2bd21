"""Rows of tokens for training and for the held-out loss, drawn from token files.

The rows of a step depend on the seed and the step alone, so a resumed run sees the same rows. Knows no model. R rows, L
tokens per row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lade.models.pretrained.documents import KINDS

END = 0  # the token that opens every document


@dataclass(frozen=True)
class Stream:
    """The concatenated documents of one kind."""

    tokens: NDArray[np.uint16]  # [S]
    starts: NDArray[np.int64]  # [D], where documents begin

    @classmethod
    def of(cls, tokens: NDArray[np.uint16]) -> "Stream":
        return cls(tokens, np.flatnonzero(tokens == END))

    def windows(self, places: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """[R, L] tokens from places [R]; from the document's start where it is less than L / 4 before a place."""
        starts = self.starts[np.searchsorted(self.starts, places, "right") - 1]
        places = np.where(places - starts < length // 4, starts, places)
        at = places[:, None] + np.arange(length)  # [R, L]
        return self.tokens[at % len(self.tokens)].astype(np.int64)


class Mixture:
    """Draws from streams in proportion to size times repeats."""

    def __init__(self, streams: Mapping[str, Stream], repeats: Mapping[str, float], seed: int) -> None:
        self._streams = [stream for name, stream in streams.items() if len(stream.tokens) and repeats[name]]
        if not self._streams:
            raise ValueError("corpus: every token file is empty or repeated 0 times")
        sizes = [len(s.tokens) * repeats[name] for name, s in streams.items() if len(s.tokens) and repeats[name]]
        self._shares = np.asarray(sizes) / sum(sizes)
        self._seed = seed

    def rows(self, step: int, count: int, length: int) -> Tensor:
        """[R, L] token ids of a training step."""
        generator = np.random.default_rng([self._seed, step])
        counts = generator.multinomial(count, self._shares)
        drawn = [
            stream.windows(generator.integers(len(stream.tokens), size=int(n)), length)
            for stream, n in zip(self._streams, counts, strict=True)
        ]
        return torch.from_numpy(generator.permutation(np.concatenate(drawn)))


def read_streams(folder: Path, side: str) -> dict[str, Stream]:
    """The token files of one side of the corpus, by kind."""
    missing = [kind for kind in KINDS if not (folder / f"{side}-{kind}.npy").is_file()]
    if missing:
        raise FileNotFoundError(f"{folder}: holds no {side}-{missing[0]}.npy, so no corpus")
    return {kind: Stream.of(np.load(folder / f"{side}-{kind}.npy")) for kind in KINDS}
