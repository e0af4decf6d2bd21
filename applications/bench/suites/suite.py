"""The type of a suite: named prompts, their loader and their scorer. Knows no suite by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lade.applications.bench.prompts import Prompt

Scorer = Callable[[Prompt, str, bool], bool | None]


class SuiteError(ValueError):
    """Prompts that are not available; the message names the suite, the places tried and how to provide them."""


@dataclass(frozen=True)
class Suite:
    """One set of prompts.

    Attributes:
        load: loads all prompts, in a fixed order, with different ids. SuiteError if they are not available.
        licence: the licence of the text, or that it is unclear.
        score: whether a completion of a prompt's first turn is right. The last argument allows it to run generated
            code; it returns None if it needs to and must not. None: no scorer.
        executes: whether `score` runs generated code.
        columns: category -> heading of its column in a report.
    """

    name: str
    load: Callable[[], list[Prompt]]
    licence: str
    score: Scorer | None = None
    executes: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
