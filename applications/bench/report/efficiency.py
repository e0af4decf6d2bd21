"""Acceptance rate and block efficiency, with confidence intervals over prompts. Knows records only.

Both are defined by Leviathan et al. (arXiv 2211.17192).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lade.applications.bench.records import Record
from lade.applications.bench.report.ratios import CallKey, PromptKey, calls_of
from lade.applications.interval import Estimate, pooled_ratio

Parts = Callable[[Record], tuple[float, float]]  # numerator and denominator


def efficiency(own: Iterable[Record]) -> dict[str, Any]:
    """Alpha and tau of one method's records; None if it does not draft."""
    drafting = [record for record in own if record.verified_by_depth]
    calls = calls_of(drafting)
    return {
        "acceptance_rate": over_calls(drafting, calls, accepted_places),
        "block_efficiency": over_calls(drafting, calls, emitted),
    }


def accepted_places(record: Record) -> tuple[float, float]:
    """Places with an accepted draft, and places with drafts."""
    return sum(record.accepted_by_depth.values()), sum(record.verified_by_depth.values())


def emitted(record: Record) -> tuple[float, float]:
    """Emitted tokens, and steps."""
    lengths = record.accepted_lengths
    return sum(length * steps for length, steps in lengths.items()), sum(lengths.values())


def over_calls(records: Iterable[Record], calls: Mapping[PromptKey, CallKey], parts: Parts) -> Estimate | None:
    """Sum over sum; the bootstrap resamples prompts, those of a batch together. None for a denominator of 0."""
    sums: dict[CallKey, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for record in records:
        part, whole = parts(record)
        mine = sums[calls[record.task, record.prompt_id]]
        mine[0] += part
        mine[1] += whole
    groups = [(part, whole) for part, whole in sums.values()]
    return pooled_ratio(groups) if sum(whole for _, whole in groups) else None
