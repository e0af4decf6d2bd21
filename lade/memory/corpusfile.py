"""A corpus as a safetensors file, and back with every value checked.

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
from typing import Any, NamedTuple

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


class Corpus(NamedTuple):
    """A corpus that was read.

    Attributes:
        ints: int32, as of `lade.memory.corpus`.
        vocabulary: token ids that a model must have for it.
        digest: 8 bytes that differ between corpora.
    """

    ints: Array
    vocabulary: int
    digest: bytes


def save_corpus(texts: Iterable[Sequence[int]], path: str | os.PathLike[str]) -> None:
    """Write a corpus: texts that outputs may repeat, for the setting `corpus`.

    The file is written atomically, and holds the texts: protect it as them. `lade corpus` makes one of text files.

    Args:
        texts: lists of the model's token ids, 1 to 10,000,000 in all.

    Raises:
        ValueError: names the argument.
        OSError: the file cannot be written.
    """
    check_path("path", path)
    found = corpus_of(_checked(texts))
    tables = {"states": states_of(found), "moves": moves_of(found), "index": index_of(found)}
    tensors = {name: torch.from_numpy(table) for name, table in tables.items()}
    write(Path(path), tensors, {"kind": KIND, "format": FORMAT})


def load_corpus(path: str | os.PathLike[str], vocabulary: int) -> Corpus:
    """What `save_corpus` wrote; the same one for all calls, as long as the file does not change.

    Args:
        vocabulary: token ids that the model reads.

    Raises:
        ValueError: names the file if it is not a corpus, is damaged, of another format or another vocabulary, is no
            regular file, or cannot be read (`OSError` too; `FileNotFoundError` if it does not exist).
    """
    with naming(f"corpus={os.fspath(path)!r}"):
        try:
            state = os.stat(path)
        except FileNotFoundError as error:
            raise AbsentFileError("there is no such file") from error
        found = _loaded(os.path.abspath(path), state.st_mtime_ns, state.st_size, state.st_ino)
        if found.vocabulary > vocabulary:
            most = found.vocabulary - 1
            raise ValueError(f"its tokens must be below {vocabulary}, the size of the vocabulary, got {most}")
        return found


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
    ints = laid_out(states, moves, index)
    return Corpus(ints, int(moves[:, TOKEN].max()) + 1, hashlib.blake2b(ints, digest_size=8).digest())


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
