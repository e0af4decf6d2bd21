"""GIT, on text alone: one prompt decodes with draft trees, a batch does not."""

from typing import Any


def batch_refusal(config: Any) -> str | None:
    return "every step widens the mask of a batch by image tokens (git)"
