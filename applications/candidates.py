"""The settings that `lade tune` tries, from labels such as `lookahead:level=5:window=15` and `auto:budget=16`.

Knows their names in a preset and the size of their forwards; knows no model and no search.
"""

import sys
from dataclasses import dataclass
from typing import Any

from lade.applications.bench.contenders import Contender, contenders, parsed
from lade.applications.bench.methods import PLAIN, MethodOptions
from lade.applications.search.autotune import Candidate
from lade.base.shown import invalid, shown

LOOKAHEAD, AUTO = "lookahead", "auto"
LEVELS, SIZES = (3, 5, 7), (3, 7, 15)  # N; W and G
BUDGETS = (2, 4, 8, 16, 24, 32, 48, 64, 96)
DEFAULT = ",".join(
    [f"{LOOKAHEAD}:level={n}:window={w}:guesses={g}" for n in LEVELS for w in SIZES for g in SIZES]
    + [f"{AUTO}:budget={budget}" for budget in BUDGETS]
)
SIZES_OF = {"LEVEL": "level", "WINDOW_SIZE": "window", "GUESS_SET_SIZE": "guesses"}  # name in a preset: option
FIXED = {"ADAPT": 0}  # budgets are fixed, without the controller
PLAIN_SETTINGS = {AUTO: {"BUDGET": 1}}  # where nothing is faster than plain decoding: one token per forward


@dataclass(frozen=True)
class Setting:
    """One candidate, in the forms of the search, the benchmark and a preset."""

    candidate: Candidate
    contender: Contender
    mode: str
    preset: dict[str, Any]  # by names of `config_lade`


def settings_of(specs: str, options: MethodOptions) -> tuple[Contender, list[Setting]]:
    """Plain decoding, and the settings of comma-separated labels. ValueError names an invalid label."""
    plain, *others = contenders(specs, options)
    if not others:
        raise ValueError(f"must have at least one label besides {PLAIN}, got {shown(specs)}")
    return plain, [_setting(contender, options) for contender in others]


def _setting(contender: Contender, options: MethodOptions) -> Setting:
    method, own = parsed(contender.label, options)
    if method.name == LOOKAHEAD:
        size, preset = _lookahead(own)
    elif method.name == AUTO and own.budget is not None:
        size, preset = own.budget, _limits(own) | {"BUDGET": own.budget} | FIXED
    else:
        allowed = f"{LOOKAHEAD}:level=N:window=W:guesses=G or {AUTO}:budget=B"
        raise invalid("a candidate", allowed, contender.label)
    return Setting(Candidate(size, contender.label), contender, method.name, preset)


def _limits(options: MethodOptions) -> dict[str, Any]:
    """The given sizes of auto's window."""
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
