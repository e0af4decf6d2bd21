"""A setting as one row: its name, check, default and place in presets; and checks for rows. Knows no setting itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from lade.base.arguments import check_integer, check_switch

Check = Callable[[str, Any], None]
"""Raises a ValueError that names the argument, what is allowed and the value; or passes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a decoding call.

    Attributes:
        public: its name in `config_lade`; `None` where it has none there.
        check: of its values; `None` passes unchecked where it is the default.
        default: before a call begins.
        settled: what a call uses for `None`: a value, or a function of the settings before this one, by field.
        in_presets: whether a preset decides it.
    """

    public: str | None
    check: Check
    default: Any
    settled: Any
    in_presets: bool

    def check_value(self, name: str, value: Any) -> None:
        if value is not None or self.default is not None:
            self.check(name, value)

    def settle(self, value: Any, before: dict[str, Any]) -> Any:
        """What a call uses for this value."""
        if value is None:
            return self.settled(before) if callable(self.settled) else self.settled
        return bool(value) if self.check is check_switch else value


def setting(
    public: str | None, check: Check, default: Any = None, settled: Any = None, in_presets: bool = False
) -> Any:
    """A dataclass field that holds its `Setting`; arguments as there."""
    return field(default=default, metadata={"setting": Setting(public, check, default, settled, in_presets)})


def settings_of(config: type) -> dict[str, Setting]:
    """The settings of a dataclass, by field."""
    return {each.name: each.metadata["setting"] for each in fields(config)}


def integer(allowed: str, holds: Callable[[int], bool]) -> Check:
    return partial(check_integer, allowed=allowed, holds=holds)


def within(least: int, most: int, everything: int | None = None) -> Check:
    """Integers from `least` to `most`, and `everything`, which stands for no limit."""
    allowed = f"an integer of at least {least} and at most {most}"
    allowed = allowed if everything is None else f"{everything} or {allowed}"
    return integer(allowed, lambda value: least <= value <= most or value == everything)
