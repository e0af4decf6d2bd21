"""The settings that `lade tune` tries, from labels such as `lookahead:level=5:window=15` and `auto:budget=16`.

Knows what a preset calls them and how large their forwards are; knows no model and no search.
"""

import sys
from dataclasses import dataclass
from typing import Any

from lade.applications.bench.contenders import Contender, contenders, parsed
from lade.applications.bench.methods import PLAIN, MethodOptions
from lade.applications.search.autotune import Candidate

LOOKAHEAD, AUTO = "lookahead", "auto"
LEVELS, SIZES = (3, 5, 7), (3, 7, 15)  # N; W and G
BUDGETS = (2, 4, 8, 16, 24, 32, 48, 64, 96)
DEFAULT = ",".join(
    [f"{LOOKAHEAD}:level={n}:window={w}:guesses={g}" for n in LEVELS for w in SIZES for g in SIZES]
    + [f"{AUTO}:budget={budget}" for budget in BUDGETS]
)
SIZES_OF = {"LEVEL": "level", "WINDOW_SIZE": "window", "GUESS_SET_SIZE": "guesses"}  # a preset's name: the option's
FIXED = {"ADAPT": 0}  # budgets are tried, and kept, without a controller over them
PLAINLY = {AUTO: {"BUDGET": 1}}  # the settings of a preset where nothing is faster: one token per forward


@dataclass(frozen=True)
class Setting:
    """One candidate: as the search, the harness and a preset know it."""

    candidate: Candidate
    contender: Contender
    mode: str
    preset: dict[str, Any]  # by `config_lade`'s names


def settings_of(specs: str, options: MethodOptions) -> tuple[Contender, list[Setting]]:
    """Plain decoding, and what the labels with commas between them ask for. ValueError names a wrong one."""
    plain, *others = contenders(specs, options)
    if not others:
        raise ValueError(f"candidates {specs!r}: at least one besides {PLAIN} is needed")
    return plain, [_setting(contender, options) for contender in others]


def _setting(contender: Contender, options: MethodOptions) -> Setting:
    method, own = parsed(contender.label, options)
    if method.name == LOOKAHEAD:
        size, preset = _lookahead(own)
    elif method.name == AUTO and own.budget is not None:
        size, preset = own.budget, _limits(own) | {"BUDGET": own.budget} | FIXED
    else:
        allowed = f"{LOOKAHEAD}:level=N:window=W:guesses=G and {AUTO}:budget=B"
        raise ValueError(f"candidate {contender.label!r}: allowed are {allowed}")
    return Setting(Candidate(size, contender.label), contender, method.name, preset)


def _limits(options: MethodOptions) -> dict[str, Any]:
    """The sizes of auto's window that were asked for."""
    given = {name: getattr(options, option) for name, option in SIZES_OF.items()}
    return {name: value for name, value in given.items() if value != getattr(MethodOptions(), SIZES_OF[name])}


def _lookahead(options: MethodOptions) -> tuple[int, dict[str, Any]]:
    guesses = options.window if options.guesses is None else options.guesses
    largest = (options.window + guesses) * (options.level - 1) if guesses > 0 else sys.maxsize
    preset = {
        "LEVEL": options.level,
        "WINDOW_SIZE": options.window,
        "GUESS_SET_SIZE": guesses,
        "POOL_FROM_PROMPT": int(options.pool_from_prompt),
    }
    if options.budget is None:
        return largest, preset
    return min(largest, options.budget), preset | {"BUDGET": options.budget}
