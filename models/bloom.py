"""BLOOM: its ALiBi bias counts keys from the flat 2-D mask, and it takes no positions."""

from typing import Any


def refusal(config: Any) -> str | None:
    return "ALiBi biases follow the flat order of tokens (bloom)"
