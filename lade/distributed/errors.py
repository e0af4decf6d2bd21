"""The error that ends a run of several processes. Knows nothing else."""

from __future__ import annotations


class RankError(RuntimeError):
    """A rank has died, has stalled or disagrees with the others, so the run ends on all ranks; the message names it."""
