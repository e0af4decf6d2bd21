"""The requests of vLLM's batch, found again in every step by their texts: the proposer gets no request ids.

A row of the batch belongs to a request that is known if the row's text, without the tokens of this step, is that
request's text, token for token. Two requests of equal texts may change places: what drafting knows of them comes from
equal texts. Knows no drafter.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from lade.core.request import Request
from lade.core.tree import Draft

LONGEST_ABSENCE = 16  # steps after which what drafting knows of a request that is in no row is dropped
ENDING = 4  # tokens by which a text is looked up before it is compared


@dataclass(slots=True, eq=False)
class Known:
    """A request that was in an earlier step.

    Attributes:
        request: as the drafter knows it; `None` once that is dropped.
        drafted: nodes of the draft that it got last, the root included.
        absent: steps since it was in a row.
    """

    request: Request | None
    drafted: int
    draft: Draft | None = None
    absent: int = 0
    _text: np.ndarray = field(default_factory=lambda: np.zeros(64, np.int32))
    _length: int = 0

    @property
    def text(self) -> np.ndarray:
        """[n] int32."""
        return self._text[: self._length]

    def extend(self, tokens: Sequence[int] | np.ndarray) -> None:
        """Append to the text."""
        end = self._length + len(tokens)
        if end > len(self._text):
            self._text = np.concatenate([self.text, np.zeros(max(end, 2 * self._length) - self._length, np.int32)])
        self._text[self._length : end] = tokens
        self._length = end


class Requests:
    """The known requests.

    Args:
        most: requests that left and are remembered by length and hash of their text, for what was drafted for them.
    """

    def __init__(self, most: int) -> None:
        self.known: list[Known] = []
        self._left: OrderedDict[tuple[int, bytes], int] = OrderedDict()  # nodes of the last draft
        self._most = most

    def match(self, texts: Sequence[np.ndarray], late: bool) -> list[Known | None]:
        """The known request of each row, no two rows the same; the others have been absent for a step more.

        Args:
            texts: of each row, without the tokens of this step.
            late: whether steps were missed, so that texts may be longer than what is known of them.
        """
        here = [known for known in self.known if not known.absent]
        same = len(here) == len(texts) and all(map(_has, here, texts))  # rows as in the last step, most of the time
        found: list[Known | None] = [*here] if same else self._searched(texts, late)
        self._forget(found)
        return found

    def _searched(self, texts: Sequence[np.ndarray], late: bool) -> list[Known | None]:
        index: defaultdict[tuple[int, bytes], list[Known]] = defaultdict(list)
        for known in self.known:
            index[_key(known.text)].append(known)
        found = [_taken(index[_key(text)], text) for text in texts]
        if late:
            taken = {id(known) for known in found}
            for row, text in enumerate(texts):
                if found[row] is None:
                    found[row] = _earlier([known for known in self.known if id(known) not in taken], text)
                    taken.add(id(found[row]))
        return [self._returned(text) if known is None else known for known, text in zip(found, texts, strict=True)]

    def _returned(self, text: np.ndarray) -> Known | None:
        """A request of which only the draft's length is known."""
        drafted = self._left.pop(_hashed(text), None) if self._left else None
        return None if drafted is None else Known(None, drafted)

    def _forget(self, found: Sequence[Known | None]) -> None:
        """Those in a row come first, in the order of the rows."""
        earlier = self.known
        self.known = [known for known in found if known is not None and known.request is not None]
        here = {id(known) for known in self.known}
        for known in self.known:
            known.absent = 0
        for known in earlier:
            if id(known) in here:
                continue
            known.absent += 1
            if known.absent > LONGEST_ABSENCE:
                self._left[_hashed(known.text)] = known.drafted
            else:
                self.known.append(known)
        while len(self._left) > self._most:
            self._left.popitem(last=False)


def _key(text: np.ndarray) -> tuple[int, bytes]:
    return len(text), text[-ENDING:].tobytes()


def _hashed(text: np.ndarray) -> tuple[int, bytes]:
    return len(text), blake2b(text.tobytes(), digest_size=16).digest()


def _taken(candidates: list[Known], text: np.ndarray) -> Known | None:
    """The first of them with this text, which is taken out."""
    for place, known in enumerate(candidates):
        if _has(known, text):
            return candidates.pop(place)
    return None


def _has(known: Known, text: np.ndarray) -> bool:
    """Whether that is its text. Behind a forward, `np.array_equal` takes 50 microseconds for a short one, too."""
    return len(known.text) == len(text) and known.text.tobytes() == text.tobytes()


def _earlier(candidates: Sequence[Known], text: np.ndarray) -> Known | None:
    """That with the longest text with which this one begins."""
    fitting = [known for known in candidates if _has(known, text[: len(known.text)])]
    return max(fitting, key=lambda known: len(known.text), default=None)
