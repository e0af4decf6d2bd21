"""The settings of one decoding call: one frozen object, checked when it is made.

Knows the upper-case names that `config_lade` accepts and the process-wide default. Knows no model and no environment.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from dataclasses import dataclass
from typing import Any

from lade.base.arguments import check_integer, check_switch
from lade.base.locks import fork_safe_lock
from lade.base.shown import invalid, shown
from lade.config import preset

MODES = ("auto", "lookahead")
FAMILIES = ("reference", "suffix", "window", "recycled", "warm")  # sources of drafts
NGRAM = 5  # N, where none is given
CAPACITY = 100_000  # contexts remembered per length, where no pool_size is given
# Of a row's forward, whose mask grows with the square: 64 MiB in float32 here, at 17 times what 7/20/20 carries.
MOST_TOKENS = 4096
BOUNDS = {  # field: (least, most)
    "window": (1, MOST_TOKENS),
    "ngram": (2, 256),
    "guesses": (1, MOST_TOKENS),
    "budget": (1, MOST_TOKENS),
    "pool_size": (1, 10_000_000),
}
ALL = {"guesses": -1}  # field: what stands for all there are


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadConfig:
    """How to draft. A field that is `None` takes its default when a call begins (`settled`).

    Attributes:
        mode: `"auto"`, the default, uses every source of drafts there is; window, ngram and guesses are upper limits of
            its window, whose n-grams have 5 tokens at most and which takes at most a quarter of the budget.
            `"lookahead"` is the paper's algorithm (arXiv 2402.02057) with exactly these.
        window: W, columns of the Jacobi window, 1 to 4,096. Default 7.
        ngram: N, tokens of an n-gram, 2 to 256, far behind what a window can foresee. Default 5.
        guesses: G, n-grams verified per step and kept per key; 1 to 4,096, or -1 for all. Default W.
        budget: the most tokens that a row's forward may carry, the root included; 1 to 4,096, since its mask grows with
            the square: 64 MiB there in float32. For the same reason (W + G)(N - 1) is at most 4,096 in `"lookahead"`,
            17 times that of 7/20/20. Default in `"auto"`: 48 on a CPU, 128 on an accelerator; in `"lookahead"`: 4,096.
        adapt: whether `"auto"` chooses before every step how much of the budget it takes, by what steps cost on this
            machine and what drafts bring in this text; else every step takes all of it.
        tenant: what drafting learns is kept for the later requests of this tenant on the same model, and read by
            nobody else. Default: nothing outlives a request.
        pool_size: contexts of each length that drafting remembers, for one request or for a tenant; 1 to 10,000,000,
            which are tens of gigabytes when full. Default 100,000.
        sources: what `"auto"` may draft from, to compare sources: names among `"reference"`, `"suffix"`, `"window"`,
            `"recycled"` and `"warm"`. Default: all of them.
        pool_from_prompt: also pool the n-grams of the prompt and of the accepted text. Default: only in `"auto"`.
        always_forward_one: shift the window by one column per step; else by as many as tokens were accepted.
        seed: seeds the private generator that fills the first window from the prompt.
        debug: 1 prints a summary after every call.

    Raises:
        ValueError: names the field, its value and what is allowed.
    """

    mode: str | None = None
    window: int | None = None
    ngram: int | None = None
    guesses: int | None = None
    budget: int | None = None
    adapt: bool = True
    tenant: str | None = None
    pool_size: int | None = None
    sources: tuple[str, ...] | None = None
    pool_from_prompt: bool | None = None
    always_forward_one: bool = True
    seed: int = 0
    debug: int = 0

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in MODES:
            raise invalid("mode", f"{', '.join(map(repr, MODES))} or None", self.mode)
        for name in BOUNDS:
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        if self.tenant is not None and (not isinstance(self.tenant, str) or not self.tenant):
            raise invalid("tenant", "a name of at least one character, or None", self.tenant)
        if self.sources is not None:
            _check_sources(self.sources)
        check_integer("seed", self.seed, "an integer", lambda value: True)
        check_integer("debug", self.debug, "an integer of at least 0", lambda value: value >= 0)
        check_switch("always_forward_one", self.always_forward_one)
        check_switch("adapt", self.adapt)
        if self.pool_from_prompt is not None:
            check_switch("pool_from_prompt", self.pool_from_prompt)
        if self.mode == "lookahead":
            _check_tokens(self.settled())

    def settled(self) -> Settings:
        """These settings with every default filled in."""
        mode = self.mode or "auto"
        window = 7 if self.window is None else self.window
        ngram = NGRAM if self.ngram is None else self.ngram
        return Settings(
            mode=mode,
            window=window,
            ngram=min(ngram, NGRAM) if mode == "auto" else ngram,  # longer ones would leave room for fewer columns
            guesses=window if self.guesses is None else self.guesses,
            budget=self.budget,
            adapt=bool(self.adapt),
            tenant=self.tenant,
            pool_size=CAPACITY if self.pool_size is None else self.pool_size,
            sources=FAMILIES if self.sources is None else self.sources,
            pool_from_prompt=mode == "auto" if self.pool_from_prompt is None else bool(self.pool_from_prompt),
            always_forward_one=bool(self.always_forward_one),
            seed=self.seed,
            debug=self.debug,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one call works with: `LookaheadConfig` with its defaults; budget and tenant may stay open."""

    mode: str
    window: int
    ngram: int
    guesses: int
    budget: int | None
    adapt: bool
    tenant: str | None
    pool_size: int
    sources: tuple[str, ...]
    pool_from_prompt: bool
    always_forward_one: bool
    seed: int
    debug: int


def _check_sources(value: Any) -> None:
    known = isinstance(value, tuple) and all(isinstance(name, str) and name in FAMILIES for name in value)
    if not known or not value:
        raise invalid("sources", f"a tuple of {', '.join(map(repr, FAMILIES))}, or None", value)


def check_size(name: str, value: Any, field: str | None = None) -> None:
    """An error that names the argument where the value is outside the bounds of the field, which has its name."""
    field = field or name
    (least, most), everything = BOUNDS[field], ALL.get(field)
    allowed = f"an integer of at least {least} and at most {most}"
    allowed = allowed if everything is None else f"{everything} or {allowed}"
    check_integer(name, value, allowed, lambda number: least <= number <= most or number == everything)


def _check_tokens(settings: Settings) -> None:
    """An error where a forward of the paper's mode could carry too much."""
    window, ngram, guesses = settings.window, settings.ngram, max(0, settings.guesses)
    tokens = (window + guesses) * (ngram - 1)
    if tokens > MOST_TOKENS:
        got = f"({window} + {guesses}) * {ngram - 1} = {tokens}"
        raise ValueError(f"(window + guesses) * (ngram - 1) must be at most {MOST_TOKENS}, got {got}")


FIELDS = {
    "MODE": "mode",
    "LEVEL": "ngram",
    "WINDOW_SIZE": "window",
    "GUESS_SET_SIZE": "guesses",
    "BUDGET": "budget",
    "ADAPT": "adapt",
    "TENANT": "tenant",
    "POOL_SIZE": "pool_size",
    "POOL_FROM_PROMPT": "pool_from_prompt",
    "ALWAYS_FWD_ONE": "always_forward_one",
    "SEED": "seed",
    "DEBUG": "debug",
}
# Kept from the original and refused until the parts behind them exist: name -> values that ask for nothing.
UNAVAILABLE = {"USE_FLASH": (0, False, None), "DIST_WORKERS": (0, 1, None)}
PRESET = "PRESET"
# What a preset decides, beside MODE; one that it does not name takes its default.
IN_PRESETS = ("LEVEL", "WINDOW_SIZE", "GUESS_SET_SIZE", "BUDGET", "ADAPT", "POOL_FROM_PROMPT")

SIZES = ("LEVEL", "WINDOW_SIZE", "GUESS_SET_SIZE")
NOTICE = (
    'lade: LEVEL, WINDOW_SIZE and GUESS_SET_SIZE are upper limits of the window of MODE="auto", which is the default; '
    'MODE="lookahead" is the paper\'s algorithm with exactly these, which they selected before version 0.2.0'
)

_log = logging.getLogger(__name__)
_lock = fork_safe_lock()
_default = LookaheadConfig()
_told = False  # whether the notice was given


def config_lade(**settings: Any) -> LookaheadConfig:
    """Change the process-wide default settings; names not given keep their values, `None` takes the default again.

    Args:
        settings: LEVEL (N), WINDOW_SIZE (W), GUESS_SET_SIZE (G), MODE, BUDGET, ADAPT, TENANT, POOL_SIZE,
            POOL_FROM_PROMPT, ALWAYS_FWD_ONE, SEED, DEBUG as in `LookaheadConfig`. The first three are upper limits
            unless MODE is "lookahead"; the first time that they are given without a mode, the log says so. PRESET is a
            file that `lade tune` wrote, or a name in the user's cache folder: its mode and settings are taken, those
            for MODE where that is given, and names given beside it win.

    Raises:
        ValueError: an unknown name, a value outside its range, or a preset that cannot be used; nothing is changed
            then.
    """
    global _default, _told
    for name, value in settings.items():
        if name in UNAVAILABLE and value not in UNAVAILABLE[name]:
            allowed = " or ".join(repr(item) for item in UNAVAILABLE[name] if isinstance(item, int))
            raise invalid(name, f"{allowed} in this version", value)
        if name not in FIELDS and name not in UNAVAILABLE and name != PRESET:
            allowed = ", ".join([*FIELDS, PRESET, *UNAVAILABLE])
            raise ValueError(f"unknown setting {name}={shown(value)}: the name must be one of {allowed}")
    if settings.get(PRESET) is not None:
        settings = _with_preset(settings)
    changes = {FIELDS[name]: value for name, value in settings.items() if name in FIELDS}
    with _lock:
        _default = config = _replace(_default, changes)
        tell = not _told and config.mode is None and any(settings.get(name) is not None for name in SIZES)
        _told = _told or tell
    if tell:
        _log.warning(NOTICE)
    return config


def forget_settings() -> None:
    """The process-wide settings are the defaults again; calls and scopes that began keep theirs."""
    global _default
    with _lock:
        _default = LookaheadConfig()


def _with_preset(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, behind them those of the preset that they name."""
    given = {name: value for name, value in settings.items() if name in FIELDS}
    _replace(LookaheadConfig(), {FIELDS[name]: value for name, value in given.items()})  # wrong ones come first
    path = preset.preset_file(settings[PRESET])
    mode, own = preset.read(path, given.get("MODE"), MODES, IN_PRESETS)
    try:
        _replace(LookaheadConfig(mode=mode), {FIELDS[name]: value for name, value in own.items()})
    except ValueError as error:
        raise ValueError(f"PRESET={str(path)!r}: settings of {mode!r}: {error}") from None
    return dict.fromkeys(IN_PRESETS) | own | {"MODE": mode} | given


def _replace(config: LookaheadConfig, changes: dict[str, Any]) -> LookaheadConfig:
    """`dataclasses.replace` whose errors carry the names that the user wrote."""
    changes = {
        name: config.__dataclass_fields__[name].default if value is None else value for name, value in changes.items()
    }
    try:
        return dataclasses.replace(config, **changes)
    except ValueError as error:
        message = str(error)
        head = message.split(" must ", maxsplit=1)[0]  # what the error is about
        public = {field: name for name, field in FIELDS.items()}
        said = re.sub(r"\w+", lambda word: public.get(word[0], word[0]), head)
        raise ValueError(said + message[len(head) :]) from None


def check_config(config: Any) -> None:
    """An error where the argument `config` is neither settings nor `None`."""
    if config is not None and not isinstance(config, LookaheadConfig):
        raise invalid("config", "a lade.LookaheadConfig or None", config)


def default_config() -> LookaheadConfig:
    """The process-wide settings, one immutable snapshot."""
    return _default
