"""MPT: its ALiBi bias follows the order of keys in the cache, which is silently wrong for a tree."""

from typing import Any


def refusal(config: Any) -> str | None:
    return "ALiBi biases follow the flat order of tokens (mpt)"
