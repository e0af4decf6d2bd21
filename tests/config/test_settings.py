"""Settings: their defaults, their bounds, and errors that say what is wrong."""

import dataclasses
import re
from typing import Any

import pytest

from lade import LookaheadConfig, config_lade
from lade.config.default import default_config
from lade.config.settings import FAMILIES, FIELDS, Settings

pytestmark = pytest.mark.usefixtures("default_settings")


# Defaults


def test_defaults() -> None:
    assert LookaheadConfig().settled() == Settings(
        mode="auto",
        window=7,
        ngram=5,
        guesses=7,
        budget=None,
        adapt=True,
        tenant=None,
        pool_size=100_000,
        sources=FAMILIES,
        pool_from_prompt=True,
        always_forward_one=True,
        seed=0,
        workers=1,
        timeout=60.0,
        debug=0,
    )


SIZES = pytest.mark.parametrize(
    "given", [{"window": 7}, {"ngram": 5}, {"guesses": 7}, {"guesses": -1}, {"window": 3, "ngram": 4, "guesses": 2}]
)


@SIZES
def test_sizes_alone_are_upper_limits_of_auto(given: dict[str, int]) -> None:
    settled = LookaheadConfig(**given).settled()
    assert (settled.mode, settled.pool_from_prompt) == ("auto", True)
    assert {name: getattr(settled, name) for name in given} == given
    assert config_lade(**{name: given.get(field) for name, field in FIELDS.items()}).settled() == settled


@SIZES
def test_the_paper_s_algorithm_is_asked_for_and_takes_exactly_these(given: dict[str, int]) -> None:
    settled = LookaheadConfig(mode="lookahead", **given).settled()
    assert (settled.mode, settled.pool_from_prompt) == ("lookahead", False)
    assert {name: getattr(settled, name) for name in given} == given
    names = {name: given.get(field) for name, field in FIELDS.items()}
    assert config_lade(**names | {"MODE": "lookahead"}).settled() == settled


def test_a_longer_ngram_than_auto_s_own_changes_nothing_there() -> None:
    assert LookaheadConfig(ngram=256).settled() == LookaheadConfig().settled()
    assert LookaheadConfig(mode="lookahead", ngram=7).settled().ngram == 7


def test_a_given_mode_stands() -> None:
    assert LookaheadConfig(mode="auto", window=3).settled().mode == "auto"
    assert LookaheadConfig(mode="lookahead").settled().mode == "lookahead"


def test_guesses_follow_the_window() -> None:
    assert LookaheadConfig(window=15).settled().guesses == 15
    assert LookaheadConfig(window=15, guesses=4).settled().guesses == 4


def test_given_values_outlive_settling() -> None:
    config = LookaheadConfig(window=1, ngram=2, guesses=-1, pool_from_prompt=True, always_forward_one=False, seed=9)
    settled = config.settled()
    for name in ("window", "ngram", "guesses", "pool_from_prompt", "always_forward_one", "seed"):
        assert getattr(settled, name) == getattr(config, name)


@pytest.mark.parametrize("name", ["mode", "window", "ngram", "guesses", "pool_from_prompt"])
def test_none_takes_the_default(name: str) -> None:
    assert LookaheadConfig(**{name: None}).settled() == LookaheadConfig().settled()


@pytest.mark.parametrize("name", ["always_forward_one", "seed", "debug"])
def test_none_is_no_value_where_the_default_is_plain(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be .*, got None"):
        LookaheadConfig(**{name: None})


def test_settings_are_frozen() -> None:
    config = LookaheadConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.window = 3  # type: ignore[misc]


# Bounds

TWO, ONE, ONE_OR_ALL = "at least 2", "at least 1", "-1 or an integer of at least 1"
BAD = [
    ("LEVEL", 1, TWO),
    ("LEVEL", 0, TWO),
    ("LEVEL", -3, TWO),
    ("LEVEL", 5.0, TWO),
    ("LEVEL", "5", TWO),
    ("LEVEL", True, TWO),
    ("LEVEL", float("nan"), TWO),
    ("LEVEL", [5], TWO),
    ("WINDOW_SIZE", 0, ONE),
    ("WINDOW_SIZE", -1, ONE),
    ("WINDOW_SIZE", 7.5, ONE),
    ("WINDOW_SIZE", "", ONE),
    ("WINDOW_SIZE", True, ONE),
    ("GUESS_SET_SIZE", 0, ONE_OR_ALL),
    ("GUESS_SET_SIZE", -2, ONE_OR_ALL),
    ("GUESS_SET_SIZE", 1.0, ONE_OR_ALL),
    ("GUESS_SET_SIZE", "all", ONE_OR_ALL),
    ("LEVEL", 257, "at most 256"),
    ("LEVEL", 10**6, "at most 256"),
    ("WINDOW_SIZE", 4097, "at most 4096"),
    ("WINDOW_SIZE", 2**63, "at most 4096"),
    ("GUESS_SET_SIZE", 4097, "at most 4096"),
    ("BUDGET", 0, ONE),
    ("BUDGET", 4097, "at most 4096"),
    ("BUDGET", 10**7, "at most 4096"),
    ("POOL_SIZE", 0, ONE),
    ("POOL_SIZE", 10**7 + 1, "at most 10000000"),
    ("CORPUS", "", "a path, as text or as pathlib.Path"),
    ("CORPUS", b"corpus", "a path, as text or as pathlib.Path"),
    ("MODE", "fast", "'auto', 'lookahead' or None"),
    ("MODE", 1, "'auto', 'lookahead' or None"),
    ("POOL_FROM_PROMPT", 2, "True, False, 1 or 0"),
    ("POOL_FROM_PROMPT", "yes", "True, False, 1 or 0"),
    ("POOL_FROM_PROMPT", [], "True, False, 1 or 0"),
    ("ALWAYS_FWD_ONE", -1, "True, False, 1 or 0"),
    ("ALWAYS_FWD_ONE", "1", "True, False, 1 or 0"),
    ("SEED", 1.5, "an integer"),
    ("SEED", True, "an integer"),
    ("SEED", "1", "an integer"),
    ("DEBUG", -1, "at least 0"),
    ("DEBUG", "1", "at least 0"),
    ("DIST_TIMEOUT", 0, "a number of seconds above 0"),
    ("DIST_TIMEOUT", True, "a number of seconds above 0"),
    ("DIST_TIMEOUT", "5", "a number of seconds above 0"),
    ("USE_FLASH", 2, "True, False, 1 or 0"),
    ("USE_FLASH", "0", "True, False, 1 or 0"),
    ("DIST_WORKERS", -1, "at least 0 and at most 1024"),
    ("DIST_WORKERS", 1025, "at least 0 and at most 1024"),
    ("DIST_WORKERS", True, "at least 0 and at most 1024"),
    ("DIST_WORKERS", "1", "at least 0 and at most 1024"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), BAD)
def test_bad_settings(name: str, value: Any, allowed: str) -> None:
    """The error names the setting as written, its value and what is allowed; good ones beside it are not taken."""
    config_lade(WINDOW_SIZE=11)
    before = default_config()
    with pytest.raises(ValueError, match=f"^{name} must be ") as caught:
        config_lade(**{"POOL_FROM_PROMPT": 1, "SEED": 4, name: value})
    assert repr(value) in str(caught.value)
    assert allowed in str(caught.value)
    assert default_config() is before


@pytest.mark.parametrize(("name", "value", "allowed"), [row for row in BAD if row[0] in FIELDS])
def test_bad_fields(name: str, value: Any, allowed: str) -> None:
    field = FIELDS[name]
    with pytest.raises(ValueError, match=f"^{field} must be ") as caught:
        LookaheadConfig(**{field: value})
    assert repr(value) in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ({"ngram": 256, "window": 16}, "(16 + 16) * 255 = 8160"),
        ({"window": 1024}, "(1024 + 1024) * 4 = 8192"),
        ({"window": 4096, "ngram": 2, "guesses": 1}, "(4096 + 1) * 1 = 4097"),
        ({"guesses": 4096}, "(7 + 4096) * 4 = 16412"),
        ({"window": 1025, "guesses": -1}, "(1025 + 0) * 4 = 4100"),
    ],
)
def test_a_forward_of_the_paper_s_mode_is_bounded(given: dict[str, int], tokens: str) -> None:
    """In auto the window is cut to the budget, so these are nothing but upper limits there."""
    assert LookaheadConfig(mode="auto", **given).settled().mode == "auto"
    with pytest.raises(ValueError, match="must be at most 4096, got") as caught:
        LookaheadConfig(mode="lookahead", **given)
    assert str(caught.value) == f"(window + guesses) * (ngram - 1) must be at most 4096, got {tokens}"
    before = config_lade(**{name: given.get(field) for name, field in FIELDS.items()})
    with pytest.raises(ValueError, match=re.escape("(WINDOW_SIZE + GUESS_SET_SIZE) * (LEVEL - 1) must be at most")):
        config_lade(MODE="lookahead")
    assert default_config() is before


@pytest.mark.parametrize(
    "given",
    [
        {"ngram": 256},
        {"window": 512, "guesses": 512},
        {"window": 4095, "ngram": 2, "guesses": 1},
        {"window": 4096, "ngram": 2, "guesses": -1},
        {"budget": 4096, "pool_size": 10**7},
    ],
)
def test_largest_allowed_settings_of_the_paper_s_mode(given: dict[str, int]) -> None:
    settled = LookaheadConfig(mode="lookahead", **given).settled()
    assert {name: getattr(settled, name) for name in given} == given


@pytest.mark.parametrize("value", [(), ("suffix", "jacobi"), "suffix", ["suffix"], 1, ([],)])
def test_bad_sources(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^sources must be ") as caught:
        LookaheadConfig(sources=value)
    assert repr(value) in str(caught.value)
    assert all(repr(name) in str(caught.value) for name in FAMILIES)


def test_given_sources_stand() -> None:
    assert LookaheadConfig(sources=("suffix", "warm")).settled().sources == ("suffix", "warm")


@pytest.mark.parametrize("name", ["LEVELS", "level", "window", "W", ""])
def test_unknown_settings(name: str) -> None:
    before = default_config()
    with pytest.raises(ValueError, match="unknown setting") as caught:
        config_lade(**{"LEVEL": 7, name: 3})
    for part in (name, "3", "LEVEL", "WINDOW_SIZE", "GUESS_SET_SIZE"):
        assert part in str(caught.value)
    assert default_config() is before


@pytest.mark.parametrize(
    "settings",
    [
        {"LEVEL": 2, "WINDOW_SIZE": 1, "GUESS_SET_SIZE": -1},
        {"GUESS_SET_SIZE": 1},
        {"MODE": "auto", "DEBUG": 0},
        {"POOL_FROM_PROMPT": 1, "ALWAYS_FWD_ONE": 0},
        {"USE_FLASH": 1, "DIST_WORKERS": 1},
        {"USE_FLASH": False, "DIST_WORKERS": 0},
        {},
    ],
)
def test_smallest_allowed_settings(settings: dict[str, Any]) -> None:
    config = config_lade(**settings)
    for name, value in settings.items():
        assert name not in FIELDS or getattr(config, FIELDS[name]) == value
