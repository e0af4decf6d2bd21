"""Falcon: rotary checkpoints decode with draft trees; ALiBi ones take their bias from the flat 2-D mask."""

from typing import Any


def refusal(config: Any) -> str | None:
    return "ALiBi biases follow the flat order of tokens (falcon)" if config.alibi else None
