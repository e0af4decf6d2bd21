"""Switches in the environment, and what their values mean. Read where a user's call begins; the engine never looks."""

from __future__ import annotations

import os
import warnings

ON, OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")

_warned: set[tuple[str, str]] = set()  # names and values


class EnvironmentWarning(UserWarning):
    """A variable in the environment has a value without a meaning; the message says what it is taken as."""


def switch(name: str, default: bool) -> bool:
    """Whether the variable says on or off; the default where it is unset or empty.

    Raises:
        ValueError: names the variable, its value and what is allowed.
    """
    value = os.environ.get(name, "").strip().lower()
    if value in ON or value in OFF:
        return value in ON
    if value:
        allowed = f"{', '.join(ON)} (on), {', '.join(OFF)} (off) or unset"
        raise ValueError(f"{name} in the environment must be {allowed}, got {os.environ[name]!r}")
    return default


def lenient_switch(name: str, default: bool) -> bool:
    """The same, where an error would end a call that has nothing to do with it: one warning per value, the default."""
    try:
        return switch(name, default)
    except ValueError as error:
        known = name, os.environ[name]
        if known not in _warned:
            _warned.add(known)
            taken = "on" if default else "off"
            warnings.warn(f"{error}; taken as {taken}, as if it were unset", EnvironmentWarning, stacklevel=3)
        return default
