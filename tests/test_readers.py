"""Every file that lade reads, made by somebody else: only the documented error or warning comes out, and soon.

The readers stand in one table, each with a sound file and the way in that a user takes. Each gets random bytes, sound
files with changed bytes, crafted headers and JSON, and what is no regular file.
"""

import json
import os
import stat
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import safetensors.torch
import torch
from families import BRANCHABLE
from handmade import folder_of, record
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model

import lade
from lade import LookaheadConfig, config_lade
from lade.applications.bench.continuation import left_to_run
from lade.applications.bench.prompts import read_prompts
from lade.applications.bench.records import read_records
from lade.applications.bench.report.results import read_results
from lade.applications.bench.runfile import add_session, check_same
from lade.applications.bench.suites.sources import read_rows
from lade.applications.chat import conversation
from lade.applications.search.measurements import MeasurementFile
from lade.applications.serve.keys import Keys
from lade.config import preset
from lade.files.cachefolder import CacheWarning
from lade.memory.warm import texts as warmtexts
from lade.memory.warm import warming as warm
from lade.memory.warm.part import PartFile
from lade.memory.warm.table import plan_of
from lade.pace import costfile
from lade.pace.cost import StepCost
from lade.target.skipset import SkipSet, read_skip_set, write_skip_set

LLAMA = next(family for family in BRANCHABLE if family.name == "llama")
LONG = 30.0  # seconds that no reader takes
HEAD = {"kind": "measurements", "format": 1}
DEPTH = 20_000  # beyond what any parser of Python's recurses
DEEP = "[" * DEPTH + "]" * DEPTH

pytestmark = pytest.mark.usefixtures("table_folder", "default_settings", "short_texts")


@pytest.fixture
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmtexts, "LENGTH", 8)


@dataclass(frozen=True)
class Reader:
    """One kind of file.

    make: writes a sound one into an empty folder, and says where it is.
    read: as a user would; returns whether the file was taken.
    """

    make: Callable[[Path], Path]
    read: Callable[[Path], bool]


def loud(call: Callable[[], object]) -> bool:
    """A call whose error is a ValueError of one line."""
    try:
        call()
    except ValueError as error:
        told = str(error)
    else:
        return True
    assert len(told.splitlines()) <= 2
    assert len(told) < 5000
    return False


def quiet(call: Callable[[], object]) -> bool:
    """A call inside `generate`: it says in one warning what it ignores."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    assert all(issubclass(warning.category, CacheWarning) for warning in found)
    assert len(found) <= 1
    return not found


def model() -> Any:
    return tiny_model(LLAMA)


def cost(folder: Path) -> Path:
    known = StepCost()
    for width in (1, 8, 32):
        known.observe(width, 100, 1, 0.01 * width)
    costfile.keeper(model())(known.logs())
    return costfile.cost_file(model())


def table(folder: Path) -> Path:
    warm.warm_up(model(), top=4)
    forget()
    return warm.table_file(model())


def forget() -> None:
    with suppress(KeyError):
        del warm._known[model()]


def cached() -> object:
    forget()
    return warm.cached(model())


def part_file() -> PartFile:
    return PartFile(model(), plan_of(model(), 4))


def part(folder: Path) -> Path:
    """Of a computation that was interrupted while it wrote texts."""

    def interrupt(done: int, total: int) -> None:
        if done > 64 + 3 * 128:
            raise InterruptedError

    with suppress(InterruptedError):
        warm.warm_up(model(), top=4, progress=interrupt)
    return part_file().path


def pool(folder: Path) -> Path:
    lade.drop_pools()
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8]])
    lade.generate(model(), ids, config=LookaheadConfig(tenant="readers"), max_new_tokens=8, do_sample=False)
    lade.save_pool(model(), folder / "pool.safetensors", tenant="readers")
    return folder / "pool.safetensors"


def written(name: str, text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_text(text)
        return folder / name

    return make


def preset_file(folder: Path) -> Path:
    preset.write(folder / "mine.json", "auto", {"auto": {"BUDGET": 24}, "lookahead": {"LEVEL": 4}}, {"model": "mine"})
    return folder / "mine.json"


def skip_set(folder: Path) -> Path:
    write_skip_set(folder / "skip.json", SkipSet((0, 3), (1,)), {"speed": 2.0})
    return folder / "skip.json"


def run_file(folder: Path) -> Path:
    return folder_of(folder, [record("plain", 0), record("auto", 0)]) / "run.json"


def results_file(folder: Path) -> Path:
    return run_file(folder).with_name("results.jsonl")


def measurements(folder: Path) -> Path:
    path = folder / "mine.measurements.jsonl"
    MeasurementFile(path, HEAD)["auto", "auto:budget=4", 0] = [1.5, 2.0]
    return path


READERS = {
    "costs": Reader(cost, lambda path: quiet(lambda: costfile.load(model()))),
    "warm table": Reader(table, lambda path: quiet(cached)),
    "part of a warm table": Reader(part, lambda path: part_file().load() is not None),
    "pool": Reader(pool, lambda path: loud(lambda: lade.load_pool(model(), path))),
    "preset": Reader(preset_file, lambda path: loud(lambda: config_lade(PRESET=path))),
    "skip set": Reader(skip_set, lambda path: loud(lambda: read_skip_set(path))),
    "method's skip set": Reader(skip_set, lambda path: loud(lambda: lade.SelfSpeculative(path))),
    "run": Reader(run_file, lambda path: loud(lambda: read_results(path.parent))),
    "run to go on with": Reader(run_file, lambda path: loud(lambda: check_same(path, {"model": "mine"}))),
    "session": Reader(run_file, lambda path: loud(lambda: add_session(path, {"generate": 1.0, "overhead": 0.1}))),
    "results": Reader(results_file, lambda path: loud(lambda: read_records(path))),
    "results to go on with": Reader(results_file, lambda path: loud(lambda: left_to_run(path, [], {}))),
    "prompts": Reader(
        written("prompts.jsonl", '{"prompt": "Once", "id": 7}\n{"turns": ["Tom", "Ann"]}\n'),
        lambda path: loud(lambda: read_prompts(path)),
    ),
    "rows of a suite": Reader(written("rows.jsonl", '{"prompt": "Once"}\n"Tom"\n'), lambda path: rows(path)),
    "list of a suite": Reader(written("rows.json", '["Once", {"prompt": "Tom"}]'), lambda path: rows(path)),
    "measurements": Reader(measurements, lambda path: loud(lambda: MeasurementFile(path, HEAD))),
    "API keys": Reader(written("keys", "a-key-of-one-client\n"), lambda path: loud(lambda: Keys.of_file(path))),
    "conversation": Reader(
        written("chat.json", '{"model": "m", "messages": [{"role": "system", "content": "Be brief."}]}'),
        lambda path: loud(lambda: conversation.load(path)),
    ),
}
FOUND_BY_NAME = {"costs", "warm table"}  # in the cache folder; where one is absent, nobody is told
TAKES_ANEW = {"measurements"}
SAFETENSORS = ("costs", "warm table", "part of a warm table", "pool")
JSON = tuple(name for name in READERS if name not in SAFETENSORS and name != "API keys")


def rows(path: Path) -> bool:
    from lade.applications.bench.suites.sources import AbsentError

    with suppress(AbsentError):
        return loud(lambda: read_rows(path))
    return False


@contextmanager
def in_cache(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LADE_CACHE", str(folder / "cache"))
        yield
        forget()
        lade.drop_pools()


@cache
def sound_files(make: Callable[[Path], Path]) -> tuple[Path, dict[Path, bytes]]:
    """Where in its folder the file lies, and all files that are made there; made once, as a table takes a while."""
    with TemporaryDirectory() as name, in_cache(folder := Path(name)):
        path = make(folder)
        files = {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        return path.relative_to(folder), files


@contextmanager
def made(name: str, folder: Path) -> Iterator[tuple[Reader, Path]]:
    """A sound file in a cache folder of its own."""
    path, files = sound_files(READERS[name].make)
    with in_cache(folder):
        for place, content in files.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_bytes(content)
        yield READERS[name], folder / path


def soon(call: Callable[[], bool]) -> bool:
    """What the call returns; where it hangs, the test fails and the suite goes on."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:  # noqa: BLE001 - handed to the test
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive(), "the reader hangs"
    if isinstance(found[0], BaseException):
        raise found[0]
    return bool(found[0])


def replaced(path: Path, content: bytes) -> None:
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.write_bytes(content)


# Content


@pytest.mark.parametrize("name", READERS)
def test_a_sound_file_is_taken(name: str, tmp_path: Path) -> None:
    with made(name, tmp_path) as (reader, path):
        if name not in ("run to go on with", "results to go on with"):  # they are of another run
            assert reader.read(path)


@pytest.mark.parametrize("name", READERS)
def test_random_and_changed_bytes(name: str, tmp_path: Path) -> None:
    with made(name, tmp_path) as (reader, path):
        sound = path.read_bytes()

        @given(st.one_of(st.binary(max_size=200), changed(sound)))
        @settings(max_examples=60)
        def holds(content: bytes) -> None:
            replaced(path, content)
            reader.read(path)

        holds()


def changed(sound: bytes) -> st.SearchStrategy[bytes]:
    """Bytes replaced, cut out, put in or doubled."""
    places = st.integers(0, len(sound)) | st.integers(0, min(len(sound), 400))  # the beginning holds headers

    def change(start: int, size: int, by: bytes) -> bytes:
        return sound[:start] + by + sound[start + size :]

    single = st.builds(change, places, st.integers(0, 3), st.binary(max_size=3))
    tokens = st.sampled_from([b"null", b"{}", b"[]", b"NaN", b"1e999", b"-1", b'""', b'"\\ud800"', b"9" * 30, b"true"])
    return st.one_of(single, st.builds(change, places, st.integers(0, 12), tokens), places.map(lambda end: sound[:end]))


CRAFTED = {
    "nothing": "",
    "null": "null",
    "deep": DEEP,
    "deep object": '{"a":' * DEPTH,
    "deep below a key": '{"settings": ' + DEEP + "}",
    "rather deep": '{"a":' * 900 + "1" + "}" * 900,
    "not a number": '{"kind": NaN, "prompt": NaN}',
    "infinite": '{"prompt": Infinity}',
    "overflowing": '{"prompt": 1e999}',
    "huge integer": '{"prompt": ' + "9" * 5000 + "}",
    "large integer": '{"prompt": ' + "9" * 400 + ', "seconds": ' + "9" * 400 + "}",
    "a name twice": '{"prompt": "a", "prompt": "b"}',
    "half a character": '{"prompt": "\\ud800", "kind": "\\ud800"}',
    "cut off": '{"prompt": "a',
    "two values": "{} {}",
}


@pytest.mark.parametrize("content", CRAFTED)
@pytest.mark.parametrize("name", JSON)
def test_crafted_json_is_refused(name: str, content: str, tmp_path: Path) -> None:
    with made(name, tmp_path) as (reader, path):
        replaced(path, CRAFTED[content].encode())
        taken = soon(lambda: reader.read(path))
        empty = content == "nothing" and name in ("results to go on with", "results", "rows of a suite", "measurements")
        cut = name == "results to go on with"  # the only line, which an interrupt may have cut short
        assert taken is (empty or cut)


@pytest.mark.parametrize("name", JSON)
def test_any_value_in_place_of_another(name: str, tmp_path: Path) -> None:
    """Sound JSON whose values are of other kinds."""
    with made(name, tmp_path) as (reader, path):
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else None
        sound = lines if lines is not None else json.loads(path.read_text())
        places = list(places_of(sound))

        @given(st.sampled_from(places), VALUES)
        @settings(max_examples=80)
        def holds(place: tuple[Any, ...], value: Any) -> None:
            other = with_value(sound, place, value)
            text = "".join(json.dumps(line) + "\n" for line in other) if lines is not None else json.dumps(other)
            replaced(path, text.encode())
            reader.read(path)

        holds()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places_of(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places_of(part, (*place, key))


def with_value(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    first, *rest = place
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[first] = with_value(value[first], tuple(rest), new)
    return copied


def with_header(header: str, tail: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header.encode())) + header.encode() + tail


def typed(dtype: str, shape: int = 1, size: int = 4) -> bytes:
    """A whole file with one tensor."""
    tensor = {"dtype": dtype, "shape": [shape], "data_offsets": [0, size]}
    return with_header(json.dumps({"__metadata__": {"checksum": "0"}, "tokens": tensor}), bytes(size))


HEADERS = {
    "no metadata": with_header('{"__metadata__": null}'),
    "a list for metadata": with_header('{"__metadata__": []}'),
    "numbers in it": with_header('{"__metadata__": {"checksum": 3}}'),
    "a list for a header": with_header("[]"),
    "deep": with_header(DEEP),
    "deep metadata": with_header('{"__metadata__": ' + DEEP + "}"),
    "longer than the file": struct.pack("<Q", 2**62) + b"{}",
    "the longest there is": struct.pack("<Q", 2**64 - 1) + b"{}",
    "four bits": typed("F4", 2, 1),
    "six bits": typed("F6_E2M3", 4, 3),
    "a power of two": typed("F8_E8M0", 1, 1),
    "complex": typed("C64", 1, 8),
    "a dtype that nobody has": typed("ABACUS"),
    "another checksum": typed("I32"),
    "a shape beyond the file": typed("I32", 2**62),
    "a negative shape": typed("I32", -1),
    "no tensors": with_header('{"__metadata__": {"checksum": "0"}}'),
}


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("name", SAFETENSORS)
def test_crafted_headers_are_refused(name: str, header: str, tmp_path: Path) -> None:
    with made(name, tmp_path) as (reader, path):
        replaced(path, HEADERS[header])
        assert not soon(lambda: reader.read(path))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.uint8, torch.int16])
@pytest.mark.parametrize("name", SAFETENSORS)
def test_models_of_other_dtypes_are_no_files_of_lade(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    with made(name, tmp_path) as (reader, path):
        replaced(path, safetensors.torch.save({"weight": torch.zeros(3).to(dtype)}, {"format": "pt"}))
        assert not soon(lambda: reader.read(path))


# What is no regular file


def folder_instead(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def beyond(path: Path) -> None:
    """A sparse file that says it is very large."""
    with path.open("wb") as file:
        file.truncate(1 << 42)


INSTEAD = {"folder": folder_instead, "loop": loop, "pipe": pipe, "device": device, "very large": beyond}
NEEDS = {"pipe": hasattr(os, "mkfifo"), "device": Path("/dev/zero").exists(), "loop": os.name == "posix"}


@pytest.mark.parametrize("kind", INSTEAD)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file_is_refused(name: str, kind: str, tmp_path: Path) -> None:
    if not NEEDS.get(kind, True):
        pytest.skip(f"no {kind} on this system")
    with made(name, tmp_path) as (reader, path):
        path.unlink()
        try:
            INSTEAD[kind](path)
        except OSError as error:
            pytest.skip(f"this file system has none: {error}")
        with release(path):
            taken = soon(lambda: reader.read(path))
        unseen = name == "warm table" and kind == "loop"  # it has no state: as if it were not there
        assert taken is unseen
        if kind == "pipe" and path.exists():
            assert stat.S_ISFIFO(path.stat().st_mode)


@contextmanager
def release(path: Path) -> Iterator[None]:
    """Afterwards somebody opens the pipe's other end, so that a reader which waits there ends."""
    try:
        yield
    finally:
        if path.is_fifo():
            with suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


@pytest.mark.parametrize("name", READERS)
def test_what_is_not_there_is_said(name: str, tmp_path: Path) -> None:
    with made(name, tmp_path) as (reader, path):
        path.unlink()
        new = name in FOUND_BY_NAME | TAKES_ANEW | {"results to go on with"}
        assert reader.read(path) is new
        path.unlink(missing_ok=True)
        if os.name == "posix":
            path.symlink_to(path.with_name("nowhere"))
            assert reader.read(path) is new


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", READERS)
def test_what_may_not_be_read_is_refused(name: str, tmp_path: Path) -> None:
    with made(name, tmp_path) as (reader, path):
        path.chmod(0)
        assert not reader.read(path)


@pytest.mark.skipif(os.name != "posix", reason="links need a privilege elsewhere")
@pytest.mark.parametrize("name", READERS)
def test_a_link_to_a_sound_file_is_followed(name: str, tmp_path: Path) -> None:
    with made(name, tmp_path) as (reader, path):
        elsewhere = path.rename(path.with_name(f"moved-{path.name}"))
        path.symlink_to(elsewhere)
        if name not in ("run to go on with", "results to go on with"):
            assert reader.read(path)


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_grows_is_read_as_far_as_allowed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is that of before: what is read counts."""
    with made(name, tmp_path) as (reader, path):
        real = os.fstat

        def before(descriptor: int) -> os.stat_result:
            found = list(real(descriptor))
            found[stat.ST_SIZE] = 1
            return os.stat_result(found)

        monkeypatch.setattr("lade.files.regularfile.os.fstat", before)
        monkeypatch.setattr("lade.files.regularfile._check_size", limited(path.stat().st_size - 1))
        assert not reader.read(path)


def limited(most: int) -> Callable[[int, int], None]:
    from lade.files import regularfile

    real = regularfile._check_size
    sizes: list[int] = []

    def check(size: int, _: int) -> None:
        sizes.append(size)
        if len(sizes) % 3 == 0:  # the third look is at what was read
            real(size, most)

    return check


# A cache folder that is none


@pytest.mark.parametrize("kind", ["absent", "file", "in a file", "loop", "pipe", "name too long"])
def test_generate_goes_on_without_a_cache_folder(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says at most once per kind of file that it keeps nothing."""
    folder = tmp_path / ("x" * 3000 if kind == "name too long" else "cache")
    if kind in ("file", "in a file"):
        folder.write_text("no folder")
    if kind == "loop" and os.name == "posix":
        folder.symlink_to(folder)
    if kind == "pipe" and hasattr(os, "mkfifo"):
        os.mkfifo(folder)
    monkeypatch.setenv("LADE_CACHE", str(folder / "below" if kind == "in a file" else folder))
    forget()
    assert quiet(lambda: warm.cached(model())) is True
    cost_read = soon(lambda: quiet(lambda: costfile.load(model())))
    assert cost_read is (kind in ("absent", "file", "in a file", "pipe"))
    assert soon(lambda: quiet(lambda: costfile.keeper(model())({}))) is (kind == "absent")


def test_the_readers_are_all_here() -> None:
    """A file that is read elsewhere gets its row above."""
    root = Path(lade.__file__).parents[1]
    ways = (".read_text(", ".read_bytes(", '.open("r', "json.load", "safe_open", "gzip.open")
    allowed = {
        "lade/files/regularfile.py", "lade/files/jsonobject.py", "lade/files/safefile.py",
        "applications/search/measurements.py",
        "applications/bench/continuation.py", "applications/bench/suites/sources.py",
        "lade/pace/costfile.py", "lade/facts/memory.py",  # /proc/cpuinfo, and a container's limit
        "lade/vllm/table.py",  # the weights that vLLM has read
        "applications/bench/machine.py",  # /proc
        "applications/bench/memory.py", "applications/bench/scoring/jail.py", "applications/bench/scoring/sandbox.py",
        "applications/bench/runfile.py",  # what this process made
        "applications/bench/report/page.py",  # a part of the package
        "applications/widen.py",  # the note beside a model
        "applications/serve/pages.py",  # a part of the package
        "applications/serve/tools.py", "applications/serve/anthropic/content.py",  # what a model made
        "applications/ray_serve/routing.py",  # the body of a request
        "applications/cache.py",  # a header that only names a model; test_cache_command has broken ones
        "applications/bench/workers.py",  # what its own processes wrote
        "lade/base/compiled.py", "lade/drafters/compiling.py",  # the source of the functions
        "lade/distributed/alone.py",  # what rank 0 sends
        "lade/distributed/costs.py",  # what rank 0 sends
        "lade/files/newfolder.py", "lade/files/wheel.py",  # what this process made; what has a pinned hash
    }  # fmt: skip
    found = {
        str(path.relative_to(root)).replace(os.sep, "/")
        for folder in ("lade", "applications")
        for path in (root / folder).rglob("*.py")
        if any(way in path.read_text(encoding="utf-8") for way in ways)
    }
    assert {path for path in found if not path.startswith(("lade/models/", "lade/applications/"))} <= allowed
