"""The process-wide settings: what changes them, and the notice that sizes select no mode."""

import logging
import threading
from pathlib import Path

import pytest

from lade import LookaheadConfig, config_lade
from lade.config import preset
from lade.config.default import default_config, forget_settings
from lade.config.settings import FIELDS

pytestmark = pytest.mark.usefixtures("default_settings")


def test_settings_are_kept_until_changed() -> None:
    config_lade(LEVEL=4, WINDOW_SIZE=9)
    assert config_lade(GUESS_SET_SIZE=3) == LookaheadConfig(ngram=4, window=9, guesses=3)
    assert default_config() == LookaheadConfig(ngram=4, window=9, guesses=3)


def test_none_forgets_a_setting() -> None:
    config_lade(LEVEL=4, WINDOW_SIZE=9, GUESS_SET_SIZE=9, POOL_FROM_PROMPT=1, ALWAYS_FWD_ONE=0, SEED=5, DEBUG=1)
    nothing = dict.fromkeys(FIELDS)
    assert config_lade(**nothing) == LookaheadConfig()


def test_a_snapshot_does_not_change() -> None:
    before = config_lade(LEVEL=4)
    config_lade(LEVEL=6)
    assert before.ngram == 4


def test_threads_lose_no_setting() -> None:
    settings = {"LEVEL": 9, "WINDOW_SIZE": 8, "GUESS_SET_SIZE": 7, "SEED": 6, "POOL_FROM_PROMPT": 1, "DEBUG": 0}
    for _ in range(50):
        config_lade(**dict.fromkeys(settings))
        start = threading.Barrier(len(settings))

        def change(name: str, value: int, start: threading.Barrier = start) -> None:
            start.wait()
            config_lade(**{name: value})

        threads = [threading.Thread(target=change, args=item) for item in settings.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {name: getattr(default_config(), FIELDS[name]) for name in settings} == settings


def test_the_defaults_are_given_back() -> None:
    before = config_lade(MODE="lookahead", LEVEL=4, DEBUG=1)
    forget_settings()
    assert default_config() == LookaheadConfig()
    assert before == LookaheadConfig(mode="lookahead", ngram=4, debug=1)
    assert config_lade(SEED=3) == LookaheadConfig(seed=3)


# The notice: sizes select no mode any more


def notices(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The notices since the last look, as a user sees them."""
    found = [record.getMessage() for record in caplog.records if record.name.split(".")[0] == "lade"]
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    caplog.clear()
    return found


@pytest.mark.parametrize("sizes", [{"LEVEL": 5}, {"WINDOW_SIZE": 7}, {"GUESS_SET_SIZE": -1}])
def test_sizes_without_a_mode_are_noted_once(sizes: dict[str, int], caplog: pytest.LogCaptureFixture) -> None:
    """A line in the log, no warning: programs that make errors of warnings run on."""
    config_lade(**sizes)
    (notice,) = notices(caplog)
    for part in ("LEVEL, WINDOW_SIZE and GUESS_SET_SIZE", "upper limits", 'MODE="auto"', 'MODE="lookahead"'):
        assert part in notice
    config_lade(**sizes)
    forget_settings()
    config_lade(**sizes)
    assert notices(caplog) == []


def test_no_notice_where_a_mode_or_no_size_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config_lade(LEVEL=None, BUDGET=9)
    config_lade(MODE="auto", LEVEL=5)
    config_lade(WINDOW_SIZE=5)  # the mode named before stands
    forget_settings()
    preset.write(tmp_path / "mine.json", "auto", {"auto": {"LEVEL": 4}}, {})
    config_lade(PRESET=tmp_path / "mine.json", WINDOW_SIZE=3)
    forget_settings()
    LookaheadConfig(ngram=4).settled()
    with pytest.raises(ValueError, match="SEED"):
        config_lade(LEVEL=5, SEED="x")
    assert notices(caplog) == []
    config_lade(LEVEL=5)
    assert len(notices(caplog)) == 1
