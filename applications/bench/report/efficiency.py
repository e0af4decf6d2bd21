"""Acceptance rate and mean accepted tokens, with confidence intervals over prompts. Knows records only.

Leviathan et al. (arXiv 2211.17192) call them the acceptance rate and the block efficiency.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lade.applications.bench.records import Record
from lade.applications.bench.report.ratios import CallKey, PromptKey, calls_of
from lade.applications.interval import Estimate, pooled_ratio

Parts = Callable[[Record], tuple[float, float]]  # numerator and denominator


def efficiency(own: Iterable[Record]) -> dict[str, Any]:
    """Alpha, and tokens per step, of one method's records; None if it does not draft."""
    records = list(own)
    drafting = [record for record in records if record.verified_by_depth]
    calls = calls_of(records)
    return {
        "acceptance_rate": over_calls(drafting, calls, accepted_places),
        "block_efficiency": over_calls(records, calls, emitted) if drafting else None,
    }


def accepted_places(record: Record) -> tuple[float, float]:
    """Places with an accepted draft, and places with drafts."""
    return sum(record.accepted_by_depth.values()), sum(record.verified_by_depth.values())


def emitted(record: Record) -> tuple[float, float]:
    """New tokens, the prefill's one included, and steps: their quotient is `Speed.tokens_per_step`."""
    return record.new_tokens, record.steps


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
