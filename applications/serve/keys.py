"""API keys: read from a file, compared in constant time. Knows no HTTP."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from lade.files.regularfile import MEBIBYTE, naming, read_text

SHORTEST = 16  # characters of a key
MAX_BYTES = MEBIBYTE  # of a file of keys


class Keys:
    """The API keys of a server. Only their digests are held.

    Args:
        keys: texts of at least 16 characters without spaces.

    Raises:
        ValueError: there is no key, or one is too short; the message does not tell it.
    """

    def __init__(self, keys: list[str]) -> None:
        if not keys:
            raise ValueError("the key file must hold at least one API key, got none")
        for line, key in enumerate(keys, 1):
            if len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
                allowed = f"at least {SHORTEST} printable ASCII characters without spaces"
                raise ValueError(f"API key {line} must have {allowed}, got another text of {len(key)} characters")
        self._digests = [_digest(key) for key in dict.fromkeys(keys)]

    @classmethod
    def of_file(cls, path: Path) -> Keys:
        """The keys of a file: one per line; blank lines and lines that begin with # do not count.

        Raises:
            UnreadableFileError: it is no readable text file, or has no valid keys.
        """
        with naming(path):
            lines = [line.strip() for line in read_text(path, MAX_BYTES).splitlines()]
            return cls([line for line in lines if line and not line.startswith("#")])

    def name(self, key: str) -> str | None:
        """The name of a key, which does not tell it; `None` if it is not one of these. Takes the same time for all."""
        digest, found = _digest(key), None
        for known in self._digests:
            if hmac.compare_digest(known, digest):
                found = known.hex()[:16]
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()
