"""What lies in the cache folder, and its limit: the least recently used go first, what the user made stays."""

import os
import warnings
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from lade.base.environment import EnvironmentWarning
from lade.files import cachecontent
from lade.files.cachecontent import DAY, DEFAULT, KEPT, KINDS, entries, limit, mark_used, trim

FILES = {  # kind: a path
    "unfinished": ".lade-1-abc.tmp",
    "parts": "warmpart-0123.safetensors",
    "tables": "warm2-0123-4567.safetensors",
    "costs": "cost1-89ab.safetensors",
    "compiled": "compiled/0123",
    "downloads": "pulled/tiny-1.0-py3-none-any.whl",
    "presets": "presets/tiny.json",
    "models": "pulled/tiny",
}
NAMED = {  # kind: a path with a number
    "unfinished": ".lade-{}.tmp",
    "parts": "warmpart-{}.safetensors",
    "tables": "warm2-0-{}.safetensors",
    "costs": "cost1-{}.safetensors",
    "compiled": "compiled/{}",
    "downloads": "pulled/{}.whl",
    "presets": "presets/{}.json",
    "models": "pulled/{}",
}
FOREIGN = ("notes.txt", "warm.safetensors", "presets/notes.txt", "downloads/other.whl", "models/mine/config.json")


def put(folder: Path, name: str, size: int = 10, used: float = 1000.0) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.startswith(("pulled/", "compiled/")) and not path.suffix:
        path.mkdir()
        (path / "config.json").write_bytes(bytes(size))
    else:
        path.write_bytes(bytes(size))
    os.utime(path, (used, used))
    return path


def test_each_kind_is_told_and_foreign_files_are_not(table_folder: Path) -> None:
    assert entries() == []
    for number, name in enumerate(FILES.values()):
        put(table_folder, name, 10 + number, 1000.0 + number)
    for name in FOREIGN:
        put(table_folder, name)
    assert set(FILES) == set(KINDS)
    found = [(entry.kind, entry.path, entry.size, entry.used) for entry in entries()]
    expected = [(kind, table_folder / name, 10 + n, 1000.0 + n) for n, (kind, name) in enumerate(FILES.items())]
    assert found == expected


def test_unfinished_work_beside_models_is_no_model(table_folder: Path) -> None:
    (table_folder / "pulled" / ".lade-1-2.tmp").mkdir(parents=True)
    assert [entry.kind for entry in entries()] == ["unfinished"]


def test_an_entry_is_removed_whole(table_folder: Path) -> None:
    paths = [put(table_folder, name) for name in FILES.values()]
    assert all(entry.remove() for entry in entries())
    assert not any(path.exists() for path in paths)


def test_a_link_is_removed_and_its_target_stays(table_folder: Path, tmp_path: Path) -> None:
    own = put(tmp_path, "own/config.json").parent
    (table_folder / "pulled").mkdir(parents=True)
    (table_folder / "pulled" / "linked").symlink_to(own)
    (entry,) = entries()
    assert entry.remove()
    assert (own / "config.json").is_file()


def test_the_least_recently_used_go_first(table_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LADE_CACHE_SIZE", "25")
    names = [f"warm2-0-{number}.safetensors" for number in range(4)]
    old, new, kept, used = (put(table_folder, name, 10, 1000.0 + number) for number, name in enumerate(names))
    mark_used(old)
    trim(kept)
    assert [path.exists() for path in (old, new, kept, used)] == [True, False, True, False]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.sampled_from(list(FILES))), max_size=8),
    st.integers(0, 60),
)
def test_the_limit_holds_and_what_the_user_made_stays(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[int, int, str]], most: int
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    paths = [
        (put(folder, NAMED[kind].format(number), size, 1000.0 + used), kind)
        for number, (size, used, kind) in enumerate(files)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LADE_CACHE", str(folder))
        patch.setenv("LADE_CACHE_SIZE", str(most))
        before = [entry for entry in entries() if entry.kind not in KEPT]
        kept = paths[0][0] if paths else folder / "none"
        trim(kept, clock=lambda: 1000.0 + 2 * DAY)
        left = [entry for entry in entries() if entry.kind not in KEPT]
    assert all(path.exists() for path, kind in paths if kind in KEPT or path == kept)
    others = [entry for entry in left if entry.path != kept]
    assert sum(entry.size for entry in left) <= most or not [entry for entry in others if entry.size]
    gone = [entry for entry in before if entry not in left]
    assert all(entry.used <= other.used for entry in gone for other in others)
    assert not gone or sum(entry.size for entry in left) + max(entry.size for entry in gone) > most


def test_work_in_progress_of_another_process_stays_for_a_day(
    table_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LADE_CACHE_SIZE", "0")
    path = put(table_folder, FILES["unfinished"])
    trim(table_folder, clock=lambda: 1000.0 + DAY - 1)
    assert path.exists()
    trim(table_folder, clock=lambda: 1000.0 + DAY)
    assert not path.exists()


def test_files_outside_are_not_marked(table_folder: Path, tmp_path: Path) -> None:
    inside, outside = put(table_folder, FILES["tables"]), put(tmp_path, "own")
    for path in (inside, outside, table_folder / "nowhere"):
        mark_used(path)
    assert inside.stat().st_mtime > 1000.0
    assert outside.stat().st_mtime == 1000.0
    assert not (table_folder / "nowhere").exists()


@pytest.mark.parametrize(
    ("given_size", "expected"),
    [
        ("", DEFAULT),
        ("0", 0),
        ("1000", 1000),
        ("500MB", 500 * 10**6),
        ("1.5 gb", 1_500_000_000),
        ("2GiB", 2 * 2**30),
        ("3 kB", 3000),
    ],
)
def test_the_limit_is_a_size(given_size: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LADE_CACHE_SIZE", given_size)
    assert limit() == expected


@pytest.mark.parametrize("given_size", ["much", "-1", "5 XB", "1e9", "MB", "9" * 400])
def test_another_limit_is_a_warning(given_size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LADE_CACHE_SIZE", given_size)
    with pytest.warns(EnvironmentWarning, match=f"LADE_CACHE_SIZE in the environment must be .*, got '{given_size}'"):
        assert limit() == DEFAULT


def test_a_folder_that_cannot_be_read_limits_nothing(table_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise OSError("no home")

    monkeypatch.setattr(cachecontent, "cache_folder", fails)
    with warnings.catch_warnings(action="error"):
        trim(table_folder)
        mark_used(table_folder)
