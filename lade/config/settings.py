"""The settings of one decoding call: one frozen object, checked when it is made.

A setting is one row: a field of `LookaheadConfig`, whose checks, defaults and names in `config_lade` follow from it.
Knows no model, no file and no environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lade.base.arguments import check_path, check_switch
from lade.base.shown import invalid
from lade.config.setting import integer, setting, settings_of, within

MODES = ("auto", "lookahead")
FAMILIES = ("reference", "suffix", "corpus", "window", "counts", "recycled", "warm", "recent")  # sources of drafts
FUSED = "fused"  # static steps, which are compiled too
NGRAM = 5  # N, where none is given
MOST_WORKERS = 1024
MOST_SECONDS = 86_400
CAPACITY = 100_000  # contexts remembered per length, where no pool_size is given
MOST_TOKENS = 4096  # of a row in a forward: its mask, which grows with the square, has 64 MiB in float32


def _check_mode(name: str, value: Any) -> None:
    if value not in MODES:
        raise invalid(name, f"{', '.join(map(repr, MODES))} or None", value)


def _check_static(name: str, value: Any) -> None:
    switch = isinstance(value, int) and value in (0, 1)
    if not switch and not (isinstance(value, str) and value == FUSED):
        raise invalid(name, f"True, False, 1, 0, {FUSED!r} or None", value)


def _check_tenant(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise invalid(name, "a name of at least one character, or None", value)


def _check_sources(name: str, value: Any) -> None:
    known = isinstance(value, tuple) and all(isinstance(source, str) and source in FAMILIES for source in value)
    if not known or not value:
        raise invalid(name, f"a tuple of {', '.join(map(repr, FAMILIES))}, or None", value)


def _check_timeout(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_SECONDS:
        raise invalid(name, f"None or a number of seconds above 0 and at most {MOST_SECONDS}", value)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadConfig:
    """How to draft. A field that is `None` takes its default when a call begins (`settled`).

    Attributes:
        mode: `"auto"`, the default, uses every source of drafts there is; window, ngram and guesses are upper limits of
            its window, whose n-grams have 5 tokens at most and which takes at most a quarter of the budget.
            `"lookahead"` is the paper's algorithm (arXiv 2402.02057) with exactly these.
        window: W, columns of the Jacobi window, 1 to 4,096. Default 7.
        ngram: N, tokens of an n-gram, 2 to 256. Default 5.
        guesses: G, n-grams verified per step and kept per key; 1 to 4,096, or -1 for all. Default W.
        budget: the most tokens of a row in a forward, the root included; 1 to 4,096, since the mask grows with the
            square: 64 MiB there in float32. For the same reason (W + G)(N - 1) is at most 4,096 in `"lookahead"`,
            17 times that of 7/20/20. Default in `"auto"`: 48 on a CPU, 128 on an accelerator; in `"lookahead"`: 4,096.
        adapt: whether `"auto"` chooses before every step how much of the budget it uses, from the cost of steps on this
            machine and the acceptance rate in this text; otherwise every step uses all of it.
        tenant: a name; what drafting learns is kept for later requests of this tenant on the same model, and never
            read by another. Default: it is dropped with the request.
        pool_size: contexts of each length that drafting remembers, for one request or for a tenant; 1 to 10,000,000,
            which are tens of gigabytes when full. Default 100,000.
        sources: what `"auto"` may draft from, to compare sources: names among `"reference"`, `"suffix"`, `"window"`,
            `"counts"`, `"recycled"`, `"warm"`, `"recent"` and `"corpus"`. Default: all of them.
        corpus: the path of a corpus, texts that outputs may repeat (`lade.Corpus`, `lade corpus`), for `"auto"`.
            Whoever can time requests may learn of it what its texts say. Default: none.
        pool_from_prompt: also pool the n-grams of the prompt and of the accepted text. Default: only in `"auto"`.
        always_forward_one: shift the window by one column per step; else by as many as tokens were accepted.
        seed: seeds the private generator that fills the first window from the prompt.
        workers: processes that share every call (`torchrun --nproc-per-node`): each holds the whole model and computes
            a part of the draft tree. All must make the same calls. Default 1: this process decodes alone.
        timeout: seconds without a sign of life of another process after which a shared call ends with
            `lade.RankError`. Default 60.
        flash: whether flash attention computes trees wherever it can: that of the package flash-attn, or PyTorch's
            own where it is not installed. Otherwise the fastest way of attention that was measured.
        static: whether steps are static where the model's can be: of fixed shapes, on a CUDA device captured as graphs,
            which launch all kernels of a step at once. Default: on a CUDA device. Elsewhere they gain nothing.
            `"fused"`: those of one row are compiled by torch too, before the capture, so that their small kernels
            become few; that takes up to minutes for each of about ten sizes, when it is first needed.
        device_drafts: whether static steps may draft on the device too, from recycled predictions and the warm table,
            several steps between two visits of the host: mode `"auto"`, calls of `generate` and requests of an engine
            whose processors read no text. With `adapt`, measured time decides between these drafts and those of the
            host; otherwise all that can be are the device's.
        debug: 1 prints a summary after every call.

    Raises:
        ValueError: names the field, what is allowed and the value.
    """

    mode: str | None = setting("MODE", _check_mode, settled="auto")
    window: int | None = setting("WINDOW_SIZE", within(1, MOST_TOKENS), settled=7, in_presets=True)
    ngram: int | None = setting("LEVEL", within(2, 256), settled=NGRAM, in_presets=True)
    guesses: int | None = setting(
        "GUESS_SET_SIZE", within(1, MOST_TOKENS, everything=-1), settled=lambda found: found["window"], in_presets=True
    )
    budget: int | None = setting("BUDGET", within(1, MOST_TOKENS), in_presets=True)
    adapt: bool = setting("ADAPT", check_switch, True, in_presets=True)
    tenant: str | None = setting("TENANT", _check_tenant)
    pool_size: int | None = setting("POOL_SIZE", within(1, 10_000_000), settled=CAPACITY)
    sources: tuple[str, ...] | None = setting(None, _check_sources, settled=FAMILIES)
    corpus: str | Path | None = setting("CORPUS", check_path)
    pool_from_prompt: bool | None = setting(
        "POOL_FROM_PROMPT", check_switch, settled=lambda found: found["mode"] == "auto", in_presets=True
    )
    always_forward_one: bool = setting("ALWAYS_FWD_ONE", check_switch, True)
    seed: int = setting("SEED", integer("an integer", lambda value: True), 0)
    workers: int | None = setting("DIST_WORKERS", within(0, MOST_WORKERS), settled=1)
    timeout: float | None = setting("DIST_TIMEOUT", _check_timeout, settled=60.0)
    flash: bool = setting("USE_FLASH", check_switch, False)
    static: bool | str | None = setting("STATIC", _check_static)
    device_drafts: bool = setting("DEVICE_DRAFTS", check_switch, False)
    debug: int = setting("DEBUG", integer("an integer of at least 0", lambda value: value >= 0), 0)

    def __post_init__(self) -> None:
        for name, row in SETTINGS.items():
            row.check_value(name, getattr(self, name))
        if self.mode == "lookahead":
            _check_tokens(self.settled())

    def settled(self) -> Settings:
        """These settings with every default filled in."""
        found: dict[str, Any] = {}
        for name, row in SETTINGS.items():
            found[name] = row.settle(getattr(self, name), found)
        if found["mode"] == "auto":
            found["ngram"] = min(found["ngram"], NGRAM)  # longer ones would leave room for fewer columns
        return Settings(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(LookaheadConfig):
    """The settings of one call: a `LookaheadConfig` with defaults filled in; budget and tenant may be `None`."""

    mode: str
    window: int
    ngram: int
    guesses: int
    pool_size: int
    sources: tuple[str, ...]
    pool_from_prompt: bool
    workers: int
    timeout: float

    def __post_init__(self) -> None:
        """Nothing to check: the config was."""


SETTINGS = settings_of(LookaheadConfig)
FIELDS = {row.public: name for name, row in SETTINGS.items() if row.public}  # by the name in `config_lade`
# The settings of a preset, beside MODE; those that it does not name take their defaults.
IN_PRESETS = tuple(row.public for row in SETTINGS.values() if row.public and row.in_presets)


def check_size(name: str, value: Any, field: str) -> None:
    """Values that are allowed for `field` pass; errors use `name`."""
    SETTINGS[field].check(name, value)


def check_config(config: Any) -> None:
    """`LookaheadConfig` and `None` pass, as the argument `config`."""
    if config is not None and not isinstance(config, LookaheadConfig):
        raise invalid("config", "a lade.LookaheadConfig or None", config)


def _check_tokens(settings: Settings) -> None:
    """ValueError if a forward of mode "lookahead" could have too many tokens."""
    window, ngram, guesses = settings.window, settings.ngram, max(0, settings.guesses)
    tokens = (window + guesses) * (ngram - 1)
    if tokens > MOST_TOKENS:
        got = f"({window} + {guesses}) * {ngram - 1} = {tokens}"
        raise ValueError(f"(window + guesses) * (ngram - 1) must be at most {MOST_TOKENS}, got {got}")
