"""Speed ratios of paired runs, with confidence intervals over prompts. Knows records only."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from lade.applications.bench.records import Record
from lade.applications.interval import Estimate, pooled_median

PromptKey = tuple[str, str | int]  # task and prompt id
CallKey = tuple[str, str | int]  # of a batch: task and the seed of its first run, unique in the task


def speed_ratios(records: Iterable[Record], method: str, baseline: str) -> dict[PromptKey, list[float]]:
    """Per prompt: tokens per second of `method` over `baseline`'s, for each turn and repeat that has both.

    The records are of one condition.
    """
    speeds: dict[tuple[PromptKey, int, int], dict[str, float]] = defaultdict(dict)
    for record in records:
        trial = ((record.task, record.prompt_id), record.turn, record.repeat)
        speeds[trial][record.method] = record.tokens_per_second
    ratios: dict[PromptKey, list[float]] = defaultdict(list)
    for (prompt, _, _), speed in speeds.items():
        if method in speed and baseline in speed:
            ratios[prompt].append(speed[method] / speed[baseline])
    return dict(ratios)


def calls_of(records: Iterable[Record]) -> dict[PromptKey, CallKey]:
    """The call that decoded each prompt; prompts of one batch share it, so their timings are not independent."""
    found: dict[PromptKey, CallKey] = {}
    for record in sorted(records, key=lambda record: record.repeat):
        prompt = record.task, record.prompt_id
        found.setdefault(prompt, (record.task, record.seed) if record.batch > 1 else prompt)
    return found


def over_prompts(ratios: Mapping[PromptKey, Sequence[float]], calls: Mapping[PromptKey, CallKey]) -> Estimate | None:
    """The median of the prompts' medians and its 95% interval, by bootstrap over prompts, those of a batch together.

    None without a ratio.
    """
    if not ratios:
        return None
    groups: dict[CallKey, list[float]] = defaultdict(list)
    for prompt, values in ratios.items():
        groups[calls[prompt]].append(median(values))
    return pooled_median(list(groups.values()))


def of_prompt(values: Sequence[float]) -> Estimate:
    """One prompt's median over its turns and repeats, with its bootstrap interval."""
    return pooled_median([[value] for value in values])
