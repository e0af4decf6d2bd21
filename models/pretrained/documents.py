"""Documents, the unit of the corpus: their origin, which are equal, and which are held out.

Knows no files and no tokens.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

SIDES = ("train", "held_out")
KINDS = ("source", "function", "exercise", "answer")


@dataclass(frozen=True)
class Document:
    """One text. `origin` is the distribution or data set; a `group` stays on one side of the split.

    The first `prompt` characters are the prompt part: no token crosses their end, as in a real prompt.
    """

    text: str
    kind: str
    origin: str
    group: str
    prompt: int = 0


def distinct(documents: Iterable[Document]) -> Iterator[Document]:
    """Documents without duplicates; white space at the ends of lines is ignored."""
    seen: set[bytes] = set()
    for document in documents:
        lines = (line.rstrip() for line in document.text.strip().splitlines())
        digest = sha256("\n".join(lines).encode()).digest()
        if digest not in seen:
            seen.add(digest)
            yield document


def is_held_out(document: Document, share: float) -> bool:
    """Whether the document's group is on the held-out side; the same answer on every machine."""
    return int.from_bytes(sha256(document.group.encode()).digest()[:6]) < share * 2**48
