"""The process-wide settings, used by calls without settings of their own; `config_lade` changes them.

Knows the upper-case names of settings. Knows no model and no environment.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from typing import Any

from lade.base.locks import fork_safe_lock
from lade.base.shown import shown
from lade.config import preset
from lade.config.settings import FIELDS, IN_PRESETS, SETTINGS, LookaheadConfig

PRESET = "PRESET"

SIZES = ("LEVEL", "WINDOW_SIZE", "GUESS_SET_SIZE")
NOTICE = (
    'lade: LEVEL, WINDOW_SIZE and GUESS_SET_SIZE are upper limits of the window of MODE="auto", which is the default; '
    'MODE="lookahead" is the paper\'s algorithm with exactly these, which they selected before version 0.2.0'
)

_log = logging.getLogger(__name__)
_lock = fork_safe_lock()
_default = LookaheadConfig()
_noticed = False  # whether the notice was logged


def config_lade(**settings: Any) -> LookaheadConfig:
    """Change the process-wide default settings; names not given keep their values, `None` takes the default again.

    Args:
        settings: LEVEL (N), WINDOW_SIZE (W), GUESS_SET_SIZE (G), MODE, BUDGET, ADAPT, TENANT, POOL_SIZE,
            POOL_FROM_PROMPT, ALWAYS_FWD_ONE, SEED, DIST_WORKERS, DIST_TIMEOUT, USE_FLASH, STATIC, DEBUG as
            in `LookaheadConfig`. The first three are upper limits unless MODE is "lookahead"; the first time that they
            are given without a mode, the log says so. PRESET is a file that `lade tune` wrote, or a name in the user's
            cache folder: its mode and settings are taken, those for MODE where that is given, and names given beside it
            win.

    Raises:
        ValueError: an unknown name, a value outside its range, or a preset that cannot be used; nothing is changed
            then.
    """
    global _default, _noticed
    for name, value in settings.items():
        if name not in FIELDS and name != PRESET:
            allowed = ", ".join([*FIELDS, PRESET])
            raise ValueError(f"unknown setting {name}={shown(value)}: the name must be one of {allowed}")
    if settings.get(PRESET) is not None:
        settings = _with_preset(settings)
    with _lock:
        _default = config = _replace(_default, settings)
        notice = not _noticed and config.mode is None and any(settings.get(name) is not None for name in SIZES)
        _noticed = _noticed or notice
    if notice:
        _log.warning(NOTICE)
    return config


def default_config() -> LookaheadConfig:
    """The process-wide settings, one immutable snapshot."""
    return _default


def forget_settings() -> None:
    """Restore the defaults; calls and scopes that have begun keep their settings."""
    global _default
    with _lock:
        _default = LookaheadConfig()


def _with_preset(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, and behind them those of the preset that they name."""
    given = {name: value for name, value in settings.items() if name in FIELDS}
    _replace(LookaheadConfig(), given)  # errors of these come before those of the file
    path = preset.preset_file(settings[PRESET])
    mode, own = preset.read(path, given.get("MODE"))
    try:
        _replace(LookaheadConfig(mode=mode), own)
    except ValueError as error:
        raise ValueError(f"PRESET={str(path)!r}: settings of {mode!r}: {error}") from None
    return dict.fromkeys(IN_PRESETS) | own | {"MODE": mode} | given


def _replace(config: LookaheadConfig, settings: dict[str, Any]) -> LookaheadConfig:
    """`dataclasses.replace` by upper-case names, which errors use too; `None` restores a default."""
    changes = {FIELDS[name]: value for name, value in settings.items() if name in FIELDS}
    defaults = {name: SETTINGS[name].default for name, value in changes.items() if value is None}
    try:
        return dataclasses.replace(config, **changes | defaults)
    except ValueError as error:
        fields, must, rest = str(error).partition(" must ")
        names = re.sub(r"\w+", lambda word: _public(word[0]), fields)
        raise ValueError(names + must + rest) from None


def _public(field: str) -> str:
    row = SETTINGS.get(field)
    return field if row is None or row.public is None else row.public
