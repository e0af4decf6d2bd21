"""Corpora as users hold them: made of texts, written as safetensors files, and read with every value checked.

    states [S, 4]   suffix link (-1: the root's), length, occurrences, not used
    moves [M, 4]    state, token (-1 between texts), state after it, occurrences; by state, the most frequent first
    index [slots]   where a move stands, by state and token; -1 in free slots

A place outside the tables would crash the process, a token outside the vocabulary the model: hence the checks.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lade.base.arguments import check_path
from lade.base.shown import invalid, shown
from lade.files.regularfile import AbsentFileError, naming
from lade.files.safefile import read, write
from lade.memory import corpus
from lade.memory.automaton import FROM, LENGTH, LINK, TO, TOKEN
from lade.memory.corpora import WIDTH, corpus_of, index_of, laid_out, moves_of, states_of
from lade.memory.hashing import Array

KIND, FORMAT = "corpus", "1"
KEPT = 4  # corpora of this process


class Corpus:
    """Texts that outputs may repeat, to draft from: for `lade.Engine.submit`, or from a file by the setting `corpus`.

    `lade corpus` makes the file of one from text files.

    Args:
        texts: lists of the model's token ids, 1 to 10,000,000 in all.

    Attributes:
        ints: int32, as of `lade.memory.corpus`.
        vocabulary: token ids that a model must have for it.

    Raises:
        ValueError: names the argument.
    """

    __slots__ = "ints", "vocabulary"

    def __init__(self, texts: Iterable[Sequence[int]]) -> None:
        self._hold(corpus_of(_checked(texts)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Corpus:
        """What `save` wrote; the same one for all calls, as long as the file does not change.

        Raises:
            ValueError: names the argument, or the file if it is not a corpus, is damaged or of another format, is no
                regular file, or cannot be read (`OSError` too; `FileNotFoundError` if it does not exist).
        """
        check_path("path", path)
        return _read(f"path={os.fspath(path)!r}", path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it atomically. The file holds the texts: protect it as them.

        Raises:
            ValueError: names the argument.
            OSError: the file cannot be written.
        """
        check_path("path", path)
        tables = {"states": states_of(self.ints), "moves": moves_of(self.ints), "index": index_of(self.ints)}
        tensors = {name: torch.from_numpy(table) for name, table in tables.items()}
        write(Path(path), tensors, {"kind": KIND, "format": FORMAT})

    def digest(self) -> bytes:
        """8 bytes that differ between corpora."""
        return hashlib.blake2b(self.ints, digest_size=8).digest()

    def check(self, named: str, vocabulary: int) -> None:
        """ValueError, which begins with `named`, where a model does not have all of its token ids."""
        if self.vocabulary > vocabulary:
            most = self.vocabulary - 1
            raise ValueError(f"{named}: its tokens must be below {vocabulary}, the size of the vocabulary, got {most}")

    def _hold(self, ints: Array) -> None:
        self.ints, self.vocabulary = ints, int(moves_of(ints)[:, TOKEN].max()) + 1


def load_corpus(path: str | os.PathLike[str], vocabulary: int) -> Corpus:
    """`Corpus.load` for the argument `corpus` and a model that reads so many token ids; errors as there and of
    `Corpus.check`."""
    named = f"corpus={os.fspath(path)!r}"
    found = _read(named, path)
    found.check(named, vocabulary)
    return found


def _read(named: str, path: str | os.PathLike[str]) -> Corpus:
    """Errors begin with `named`."""
    with naming(named):
        try:
            state = os.stat(path)
        except FileNotFoundError as error:
            raise AbsentFileError("there is no such file") from error
        return _loaded(os.path.abspath(path), state.st_mtime_ns, state.st_size, state.st_ino)


@lru_cache(maxsize=KEPT)
def _loaded(path: str, *state: int) -> Corpus:
    tensors, metadata = read(Path(path))
    if metadata.get("kind") != KIND:
        raise ValueError("it is not a corpus")
    if metadata.get("format") != FORMAT:
        raise ValueError(f"it must be of format {FORMAT}, got {metadata.get('format')}")
    shapes = {name: (len(tensor.shape), tensor.dtype, *tensor.shape[1:]) for name, tensor in tensors.items()}
    rows, slots = (2, torch.int32, WIDTH), (1, torch.int32)
    if shapes != {"states": rows, "moves": rows, "index": slots}:
        raise ValueError("tensors are missing or unknown, or have the wrong shapes or dtypes")
    states, moves, index = (tensors[name].numpy() for name in ("states", "moves", "index"))
    _check_states(states)
    _check_moves(moves, states)
    _check_index(index, len(moves))
    found = Corpus.__new__(Corpus)
    found._hold(laid_out(states, moves, index))
    return found


def _check_states(states: np.ndarray) -> None:
    links, lengths = states[:, LINK], states[:, LENGTH]
    if not len(states) or links[0] != -1 or lengths[0] != 0:
        raise ValueError("its first state is not the root")
    if not ((links[1:] >= 0) & (links[1:] < len(states))).all() or not (lengths[links[1:]] < lengths[1:]).all():
        raise ValueError("a suffix link does not lead to a shorter string")
    counts = states[:, corpus.COUNT]
    if not (counts[1:] < counts[links[1:]]).all():
        raise ValueError("a string occurs as often as one that it ends with and that has a state of its own")


def _check_moves(moves: np.ndarray, states: np.ndarray) -> None:
    begins, times = moves[:, FROM], moves[:, corpus.TIMES]
    inside = (begins >= 0) & (begins < len(states)) & (moves[:, TO] > 0) & (moves[:, TO] < len(states))
    if not len(moves) or not inside.all() or (np.diff(begins) < 0).any() or (moves[:, TOKEN] < corpus.BETWEEN).any():
        raise ValueError("a move is out of place")
    totals = np.bincount(begins, weights=times, minlength=len(states))
    if not (times >= 1).all() or not (totals <= states[:, corpus.COUNT]).all():
        raise ValueError("moves occur more often than their state")


def _check_index(index: np.ndarray, moves: int) -> None:
    slots, used = len(index), index >= 0
    power = slots > 0 and slots & (slots - 1) == 0
    if not power or not ((index >= -1) & (index < moves)).all() or 2 * int(used.sum()) > slots:
        raise ValueError("its index is not one of its moves")


def _checked(texts: Any) -> Iterator[Sequence[int]]:
    """ValueError where there are no lists of token ids, as soon as one is met that is none."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise invalid("texts", "lists of token ids", texts)
    for text in texts:
        tokens = text.tolist() if isinstance(text, torch.Tensor | np.ndarray) else text
        if not isinstance(tokens, list | tuple) or not all(map(_is_token, tokens)):
            raise ValueError(f"texts must be lists of token ids, which are integers of at least 0, got {shown(text)}")
        yield tokens


def _is_token(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31
