"""Rows of settings: what a row checks, and what a call uses for its values."""

from dataclasses import dataclass, fields
from typing import Any

import pytest

from lade.base.arguments import check_switch
from lade.config.setting import integer, setting, settings_of, within
from lade.config.settings import FIELDS, IN_PRESETS, SETTINGS, LookaheadConfig


@dataclass
class Example:
    size: int | None = setting("SIZE", within(1, 9, everything=-1), settled=4, in_presets=True)
    double: int | None = setting(
        "DOUBLE", integer("an even integer", lambda value: value % 2 == 0), settled=lambda found: 2 * found["size"]
    )
    on: bool = setting(None, check_switch, True)


ROWS = settings_of(Example)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("size", 0, "size must be -1 or an integer of at least 1 and at most 9, got 0"),
        ("size", True, "size must be -1 or an integer of at least 1 and at most 9, got True"),
        ("double", 3, "double must be an even integer, got 3"),
        ("on", None, "on must be True, False, 1 or 0, got None"),
    ],
)
def test_values_are_checked(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        ROWS[name].check_value(name, value)
    assert str(caught.value) == message


@pytest.mark.parametrize(("name", "value"), [("size", 9), ("size", -1), ("size", None), ("double", 4), ("on", 0)])
def test_allowed_values_pass(name: str, value: Any) -> None:
    ROWS[name].check_value(name, value)


def test_none_becomes_a_value_or_follows_the_settings_before() -> None:
    assert ROWS["size"].settle(None, {}) == 4
    assert ROWS["double"].settle(None, {"size": 3}) == 6
    assert ROWS["double"].settle(2, {"size": 3}) == 2
    assert ROWS["on"].settle(1, {}) is True


def test_a_row_gives_its_field_the_default() -> None:
    assert Example() == Example(size=None, double=None, on=True)


def test_every_field_is_a_row_and_names_are_unique() -> None:
    assert list(SETTINGS) == [field.name for field in fields(LookaheadConfig)]
    assert all(SETTINGS[field.name].default == field.default for field in fields(LookaheadConfig))
    assert len(FIELDS) == len(SETTINGS) - 1  # `sources` has no name in `config_lade`
    assert set(IN_PRESETS) < set(FIELDS)
