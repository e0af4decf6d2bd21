"""GIT, asked for text alone: one prompt branches, a batch does not."""

from typing import Any


def batch_refusal(config: Any) -> str | None:
    return "every step widens the mask of a batch by image tokens (git)"
