"""MPT: its ALiBi bias follows the keys' order in the cache; a tree comes out wrong without an error."""

from typing import Any


def refusal(config: Any) -> str | None:
    return "ALiBi biases follow the flat order of tokens (mpt)"
