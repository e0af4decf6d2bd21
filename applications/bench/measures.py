"""The measured fields of a record. Knows no prompt, no task and no method by name."""

import hashlib
from collections.abc import Sequence
from typing import Any

import lade
from lade.applications.bench.run import Run
from lade.models.pretrained.figures import repeated_share


def measures(run: Run, row: int, beside: Run, baseline: bool) -> dict[str, Any]:
    """The fields for one row of a run.

    Args:
        beside: the run that it is compared with, of the same trial.
        baseline: whether the method drafts nothing.
    """
    text, forwards = run.texts[row], run.forwards
    steps = steps_of(run, row)
    return {
        "rows": len(run.texts),
        "new_tokens": len(text),
        "steps": steps,
        "tokens_per_step": len(text) / steps if steps else None,
        "mean_forward_tokens": forwards.mean_tokens,
        "seconds": forwards.seconds,
        "prefill_seconds": forwards.prefill_seconds,
        "model_seconds": forwards.model_seconds,
        "host_seconds": forwards.host_seconds,
        "identical_to_plain": text == beside.texts[row],
        "digest": digest(text),
        "accepted_lengths": {1: steps} if baseline and set(forwards.widths) == {1} else {},
        "widths": forwards.widths,
        "repeated_4grams": repeated_share(text),
        "peak_memory_bytes": forwards.peak_bytes,
        **(draft_counts(run.stats, row) if run.stats else {}),
    }


def steps_of(run: Run, row: int) -> int:
    """Forwards after the prefill that included the row: from the method's statistics, else one per token."""
    if len(run.texts) == 1:
        return run.forwards.steps
    if run.stats is not None and run.stats.by_row:
        return run.stats.by_row[row].steps
    return min(run.forwards.steps, len(run.texts[row]) - 1)


def draft_counts(stats: lade.GenerationStats, row: int) -> dict[str, Any]:
    """Fields from the method's statistics; after a fallback to plain decoding, the reason."""
    if stats.fallback is not None:
        return {"fallback": stats.fallback}
    own = stats.by_row[row] if stats.by_row else stats
    names = ("proposed", "verified", "accepted", "verified_by_depth", "accepted_by_depth", "accepted_lengths")
    return {name: getattr(own, name) for name in names} | {
        "draft_seconds": stats.draft_seconds,
        "decisions": stats.decisions,
    }


def digest(text: Sequence[int]) -> str:
    """A short hash of the text."""
    return hashlib.sha256(repr(tuple(text)).encode()).hexdigest()[:16]
