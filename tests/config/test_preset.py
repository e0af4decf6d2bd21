"""`config_lade(PRESET=...)`: which settings it takes, from where, and what it refuses before anything changes."""

import json
from pathlib import Path
from typing import Any

import pytest

from lade import LookaheadConfig, config_lade
from lade.config.default import default_config
from lade.config.preset import preset_file, read, write

pytestmark = pytest.mark.usefixtures("default_settings", "table_folder")

SETTINGS: dict[str, dict[str, Any]] = {
    "auto": {"BUDGET": 24},
    "lookahead": {"LEVEL": 4, "WINDOW_SIZE": 9, "GUESS_SET_SIZE": 6, "POOL_FROM_PROMPT": 1},
}
PAPER = LookaheadConfig(mode="lookahead", ngram=4, window=9, guesses=6, pool_from_prompt=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "mine.json", "auto", SETTINGS, {"model": "stories260K"})
    return tmp_path / "mine.json"


# What is taken


def test_the_fastest_mode_s_settings_are_taken(path: Path) -> None:
    assert config_lade(PRESET=path) == LookaheadConfig(mode="auto", budget=24)
    assert config_lade(PRESET=str(path)) == default_config() == LookaheadConfig(mode="auto", budget=24)


def test_a_given_mode_chooses_among_them(path: Path) -> None:
    assert config_lade(PRESET=path, MODE="lookahead") == PAPER


def test_a_preset_s_mode_is_the_one_whose_settings_it_holds(path: Path) -> None:
    """Sizes say nothing about the mode: those of mode auto are limits of its window."""
    write(path, "lookahead", {"auto": {"LEVEL": 3, "BUDGET": 24}, "lookahead": {"BUDGET": 8}}, {})
    assert config_lade(PRESET=path) == LookaheadConfig(mode="lookahead", budget=8)
    assert config_lade(PRESET=path, MODE="auto").settled().mode == "auto"
    assert default_config() == LookaheadConfig(mode="auto", ngram=3, budget=24)


def test_names_beside_the_preset_win(path: Path) -> None:
    assert config_lade(PRESET=path, BUDGET=8) == LookaheadConfig(mode="auto", budget=8)
    assert config_lade(BUDGET=None, PRESET=path, SEED=3) == LookaheadConfig(mode="auto", seed=3)
    assert config_lade(PRESET=path, MODE="lookahead", LEVEL=7, SEED=0) == config_lade(LEVEL=7)
    assert default_config().window == 9


def test_what_shapes_the_drafts_is_the_preset_s_alone_and_the_rest_is_kept(path: Path) -> None:
    config_lade(LEVEL=9, WINDOW_SIZE=30, POOL_FROM_PROMPT=1, SEED=5, DEBUG=1, TENANT="me")
    assert config_lade(PRESET=path) == LookaheadConfig(mode="auto", budget=24, seed=5, debug=1, tenant="me")


def test_none_is_no_preset() -> None:
    config_lade(LEVEL=4)
    assert config_lade(PRESET=None, SEED=2) == LookaheadConfig(ngram=4, seed=2)


def test_a_name_lies_in_the_cache_folder(table_folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (table_folder / "presets").mkdir(parents=True)
    path.rename(table_folder / "presets" / "small-3.2.json")
    assert config_lade(PRESET="small-3.2") == LookaheadConfig(mode="auto", budget=24)
    monkeypatch.chdir(table_folder / "presets")
    monkeypatch.setenv("LADE_CACHE", "nowhere")
    assert config_lade(PRESET="small-3.2.json", MODE="lookahead") == PAPER  # a path: no longer a name
    with pytest.raises(ValueError, match=r"small-3\.2\.json': cannot be read"):
        config_lade(PRESET="small-3.2")


def test_what_was_written_is_read(path: Path) -> None:
    assert read(path, None) == ("auto", SETTINGS["auto"])
    assert json.loads(path.read_text())["model"] == "stories260K"
    assert [file.name for file in path.parent.iterdir()] == ["mine.json"]


# What is refused


def broken(**changes: Any) -> str:
    return json.dumps({"kind": "preset", "format": 1, "mode": "auto", "settings": SETTINGS} | changes)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("{", ["is not JSON"]),
        ("\udcff", ["is not JSON"]),
        ("[1]", ["must be a JSON object, got list"]),
        ("{}", ["kind and format must be 'preset' and 1, got None and None"]),
        (broken(format=2), ["'preset' and 1, got 'preset' and 2"]),
        (broken(settings=[]), ["settings must be an object of objects", "got []"]),
        (broken(settings={}), ["settings must be an object of objects", "got {}"]),
        (broken(settings={"auto": 16}), ["got {'auto': 16}"]),
        (broken(settings={"fast": {}}), ["a mode in settings must be 'auto' or 'lookahead', got 'fast'"]),
        (
            broken(mode="lookahead", settings={"auto": {}}),
            ["mode must be a mode in its settings, 'auto', got 'lookahead'"],
        ),
        (broken(mode=["auto"]), ["mode must be", "'auto' or 'lookahead', got ['auto']"]),
        (broken(mode=None), ["mode must be", "'auto' or 'lookahead', got None"]),
        (broken(settings={"auto": {"BUDGETS": 3}}), ["settings of 'auto' must be among", "LEVEL", "got BUDGETS=3"]),
        (broken(settings={"auto": {"SEED": 3}}), ["settings of 'auto' must be among", "LEVEL", "got SEED=3"]),
        (broken(settings={"auto": {"BUDGET": 0}}), ["'auto': BUDGET must be an integer of at least 1", "got 0"]),
        (broken(settings={"auto": {"BUDGET": 16.0}}), ["'auto': BUDGET must be an integer of at least 1", "got 16.0"]),
        (broken(settings={"auto": {"LEVEL": "5"}}), ["'auto': LEVEL must be an integer of at least 2", "got '5'"]),
        (broken(settings={"auto": {"BUDGET": 10**7}}), ["'auto': BUDGET must be", "at most 4096, got 10000000"]),
        (broken(settings={"auto": {"LEVEL": 10**6}}), ["'auto': LEVEL must be", "at most 256, got 1000000"]),
        (
            broken(mode="lookahead", settings={"lookahead": {"WINDOW_SIZE": 2000}}),
            ["'lookahead'", "(WINDOW_SIZE + GUESS_SET_SIZE) * (LEVEL - 1) must be at most 4096", "= 16000"],
        ),
    ],
)
def test_broken_presets_are_refused(content: str, parts: list[str], path: Path) -> None:
    path.write_bytes(content.encode(errors="surrogateescape"))
    before = config_lade(LEVEL=6)
    with pytest.raises(ValueError, match=r"^PRESET=") as caught:
        config_lade(PRESET=path, SEED=4)
    for part in (repr(str(path)), *parts):
        assert part in str(caught.value)
    assert default_config() is before


@pytest.mark.parametrize("value", [3, True, "", " ", ".", "..", "...", " .. ", ["a"], Path(".."), Path(".")])
def test_what_is_no_name_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^PRESET must be the path") as caught:
        config_lade(PRESET=value)
    assert repr(value) in str(caught.value)


def test_presets_that_are_not_there_are_named(tmp_path: Path, table_folder: Path) -> None:
    for name, where in (("mine", table_folder / "presets" / "mine.json"), (str(tmp_path / "x"), tmp_path / "x")):
        assert preset_file(name) == where
        with pytest.raises(ValueError, match="cannot be read") as caught:
            config_lade(PRESET=name)
        assert repr(str(where)) in str(caught.value)


def test_a_folder_is_no_preset(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"PRESET=.*cannot be read"):
        config_lade(PRESET=tmp_path)


@pytest.mark.parametrize("value", ["presets/", "./presets", "../x"])
def test_a_name_with_a_folder_in_it_is_a_path(value: str, table_folder: Path) -> None:
    assert table_folder not in preset_file(value).parents


def test_a_mode_without_settings_is_refused(path: Path) -> None:
    write(path, "auto", {"auto": {"BUDGET": 1}}, {})
    before = default_config()
    with pytest.raises(ValueError, match=r"^MODE must be 'auto', which .* got 'lookahead'$") as caught:
        config_lade(PRESET=path, MODE="lookahead")
    assert repr(str(path)) in str(caught.value)
    assert default_config() is before


@pytest.mark.parametrize(("name", "value"), [("MODE", "fast"), ("LEVEL", 1), ("USE_FLASH", 2), ("WINDOW", 3)])
def test_wrong_names_beside_a_preset_come_first(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^(unknown setting )?{name}\\b"):
        config_lade(**{"PRESET": tmp_path / "nowhere.json", name: value})


def test_a_user_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"^PRESET=.*no-such-user"):
        config_lade(PRESET="~no-such-user/mine")
