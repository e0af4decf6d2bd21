"""On/off switches in environment variables. Read where a public call begins; the engine reads none."""

from __future__ import annotations

import os
import warnings

ON, OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")

_warned: set[tuple[str, str]] = set()  # names and values


class EnvironmentWarning(UserWarning):
    """An environment variable has an unknown value; the message says what it is taken as."""


def switch(name: str, default: bool) -> bool:
    """Whether the variable is on; the default where it is unset or empty.

    Raises:
        ValueError: names the variable, what is allowed and its value.
    """
    value = os.environ.get(name, "").strip().lower()
    if value in ON or value in OFF:
        return value in ON
    if value:
        allowed = f"{', '.join(ON)} (on), {', '.join(OFF)} (off) or unset"
        raise ValueError(f"{name} in the environment must be {allowed}, got {os.environ[name]!r}")
    return default


def lenient_switch(name: str, default: bool) -> bool:
    """`switch`, but an unknown value is the default and one warning, as an error would end an unrelated call."""
    try:
        return switch(name, default)
    except ValueError as error:
        setting = name, os.environ[name]
        if setting not in _warned:
            _warned.add(setting)
            taken = "on" if default else "off"
            warnings.warn(f"{error}; taken as {taken}, as if it were unset", EnvironmentWarning, stacklevel=3)
        return default
