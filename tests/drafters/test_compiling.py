"""Machine code of the drafting loops: when it is made, where it lies, and that it builds the trees of Python."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from lade import LookaheadConfig
from lade.base.compiled import SOURCES, Compiled, Linker, called_by, direct, trial
from lade.core.request import Request, Verdict
from lade.drafters import compiling, workspace
from lade.drafters.blend import BlendDrafter
from lade.drafters.exercise import exercise
from lade.memory.corpora import NO_CORPUS, corpus_of
from lade.memory.mixture import expect
from lade.memory.pools import Pool, fresh_pool

pytestmark = pytest.mark.usefixtures("as_python")

VOCABULARY = 12
SLOWER = "lade: drafts take longer to find, as there is no machine code for it ({})"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, table_folder: Path) -> Iterator[list[str]]:
    """What is done in the background, which is neither compiled nor loaded."""
    done: list[str] = []
    monkeypatch.setenv(compiling.SWITCH, "1")
    monkeypatch.setattr(compiling, "_worker", None)
    monkeypatch.setattr(compiling, "_compile_apart", lambda: done.append("compile"))
    monkeypatch.setattr(compiling, "_compile_halves", lambda: done.append("halves"))
    monkeypatch.setattr(compiling, "load", lambda: done.append("load"))
    yield done
    compiling.wait()


def test_it_is_compiled_once_and_loaded_from_then_on(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = compiling.machine_folder()

    def compile_it() -> None:
        asked.append("compile")
        compiling.note_done(folder)

    monkeypatch.setattr(compiling, "_compile_apart", compile_it)
    compiling.begin()
    compiling.begin()
    compiling.wait()
    assert asked == ["compile", "load"]
    compiling._worker = None
    compiling.begin()
    compiling.wait()
    assert asked == ["compile", "load", "load"]


def test_of_many_processes_one_compiles(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one that is to compile ends at once, and who waits for the machine code waits for the first."""
    folder = compiling.machine_folder()
    folder.mkdir(parents=True)
    with FileLock(folder / compiling.LOCK):
        compiling.compile_alone()
    assert asked == []
    compiling.compile_alone()
    assert asked == ["halves", "load"]

    class Held(FileLock):
        """A lock that another process holds until it has compiled."""

        def acquire(self, *args: Any, **kwargs: Any) -> Any:
            compiling.note_done(folder)
            return super().acquire(*args, **kwargs)

    monkeypatch.setattr(compiling, "FileLock", Held)
    compiling.begin()
    compiling.wait()
    assert asked == ["halves", "load", "compile", "load"]


def test_a_copied_folder_is_compiled_anew(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numba would not find what lies in it, and compile all in the process that decodes."""
    folder = compiling.machine_folder()
    (folder / SOURCES).mkdir(parents=True)
    (folder / SOURCES / "some.py").touch()
    compiling.note_done(folder)
    assert compiling.is_done(folder)
    copied = Path(shutil.copytree(folder, tmp_path / "copy"))
    assert not compiling.is_done(copied)
    monkeypatch.setattr(compiling, "machine_folder", lambda: copied)
    compiling.begin()
    compiling.wait()
    assert asked == ["compile"]
    compiling.note_done(copied)
    assert compiling.is_compiled()
    os.utime(copied / SOURCES / "some.py", ns=(1, 1))
    assert not compiling.is_compiled()


def test_a_cache_folder_that_cannot_be_read(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LADE_CACHE", str(tmp_path / "file"))
    assert not compiling.is_compiled()
    assert not compiling.compiles()


def test_ctrl_c_at_the_end_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def acquire(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(compiling, "_loading", Interrupted())
    compiling._load_no_more()


def test_what_could_not_be_compiled_is_not_loaded(asked: list[str], caplog: pytest.LogCaptureFixture) -> None:
    compiling.begin()
    compiling.wait()
    assert asked == ["compile"]
    assert caplog.messages == [SLOWER.format("another process made none")]


# Loads once the process is ending, by way of torch.
ENDING = """
import atexit, threading
import torch
from lade.drafters import compiling

ending = threading.Event()

def load():
    loading.set()
    ending.wait()
    for _ in range(10_000):
        torch.ones(1) + 1
    print("loaded", flush=True)

compiling.provide, compiling.load = lambda: True, load
loading = threading.Event()
compiling.begin()
loading.wait()
atexit.register(ending.set)
"""


def test_a_process_that_ends_while_it_is_loaded_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiling.SWITCH, "1")
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "loaded\n"), ended.stderr


def test_the_environment_switches_it_off(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiling.SWITCH, "0")
    compiling.begin()
    compiling.wait()
    assert asked == []


def test_without_numba_nothing_is_tried(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise compiling.PackageNotFoundError(name)

    monkeypatch.setattr(compiling, "version", missing)
    compiling.begin()
    compiling.wait()
    assert asked == []


def test_a_compiler_that_fails_leaves_the_functions_as_they_are(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise subprocess.CalledProcessError(1, "compiler")

    monkeypatch.setattr(compiling, "_compile_apart", fail)
    compiling.begin()
    compiling.wait()
    assert asked == []
    assert all(entry.machine is None for entry in compiling.ENTRIES)
    assert caplog.messages == [SLOWER.format("Command 'compiler' returned non-zero exit status 1.")]


def test_other_functions_lie_elsewhere(table_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = compiling.machine_folder()
    assert before == compiling.machine_folder()
    monkeypatch.setattr(compiling, "version", lambda name: "0.0")
    assert compiling.machine_folder() != before
    assert compiling.machine_folder().parent == before.parent == table_folder / compiling.FOLDER


def test_every_marked_function_is_compiled() -> None:
    """A function that is marked and never called by an entry is dead."""
    marked = {
        value
        for name, module in list(sys.modules.items())
        if name.startswith(("lade.core", "lade.memory", "lade.drafters", "lade.target", "lade.weights"))
        for value in vars(module).values()
        if hasattr(value, "__compiled__")
    }
    assert marked == called_by(entry.python for entry in compiling.ENTRIES)


def test_the_halves_are_all_entries() -> None:
    one, other = map(set, compiling.HALVES)
    assert one | other == set(compiling.ENTRIES)
    assert not one & other


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.usefixtures("table_folder")
def test_two_processes_compile_all() -> None:
    compiling._compile_halves()
    machines = compiling.compile_entries(compiling.ENTRIES)
    assert all(sum(machine.stats.cache_misses.values()) == 0 for machine in machines.values())


# The same trees


def exponential(index: int) -> np.ndarray:
    """Noise of sampling."""
    return np.random.default_rng(index).exponential(size=VOCABULARY).astype(np.float32)


class Drawn:
    """A model that finds tokens likely by chance."""

    def __init__(self, seed: int, lines: int) -> None:
        noise = np.random.default_rng(seed)
        self.tokens = np.stack([noise.permutation(VOCABULARY)[:8] for _ in range(lines)]).astype(np.int32)
        drawn = np.sort(noise.random((lines, 8)) ** 3 + 1e-3)[:, ::-1]
        self.probabilities = np.ascontiguousarray(drawn / drawn.sum(1, keepdims=True), np.float32)
        self.size = lines

    def greedy(self, slot: int, node: int) -> int:
        return int(self.tokens[node % self.size, 0])

    def likeliest(self) -> tuple[np.ndarray, np.ndarray]:
        return self.tokens, self.probabilities

    def lines_of(self, slot: int, nodes: Sequence[int]) -> list[int]:
        return [(7 * slot + node) % self.size for node in nodes]


def session(seed: int, rows: int, budget: int, capacity: int, **config: Any) -> list[Any]:
    """The trees of some steps of rows that join and leave, and what was learned."""
    noise, pool = random.Random(seed), fresh_pool(capacity)
    own: dict[str | None, Pool] = {"shared": pool}
    settings = LookaheadConfig(**config).settled()
    texts = [noise.choices(range(VOCABULARY), k=40) for _ in range(4)]
    corpus = corpus_of(texts) if seed % 2 else NO_CORPUS
    drafter = BlendDrafter(settings, budget, pool=lambda tenant: own.get(tenant) or fresh_pool(capacity), corpus=corpus)
    found, requests = [], list[Request]()
    for step in range(12):
        while len(requests) < 1 + step % rows:
            text = noise.choices(range(VOCABULARY), k=noise.randrange(2, 90))
            tenant = noise.choice(["shared", None])
            request = Request(0, text, len(text) - 1, 10_000, tenant=tenant)
            request.reference = noise.choice([None, text[::-1], text])
            request.noise = noise.choice([None, exponential])
            drafter.start(request)
            requests.append(request)
        drafts = drafter.draft(requests, [noise.randrange(9) for _ in requests])
        found.append([(draft.tokens, draft.parents, draft.sources) for draft in drafts])
        verdicts = [walked(draft, noise) for draft in drafts]
        for request, verdict in zip(requests, verdicts, strict=True):
            request.tokens += verdict.tokens
        drafter.observe(requests, drafts, verdicts, Drawn(noise.randrange(999), 40))
        if noise.random() < 0.3:
            requests.pop(noise.randrange(len(requests)))
    return [found, [[each.tolist() for each in pool.table.rows(length)] for length in (1, 2, 3, 4)]]


def walked(draft: Any, noise: random.Random) -> Verdict:
    path, tokens = [0], []
    while True:
        known = [token for node, token in draft.children if node == path[-1]]
        tokens.append(noise.choice([*known, noise.randrange(VOCABULARY)]))
        child = draft.children.get((path[-1], tokens[-1]))
        if child is None:
            return Verdict(path, tokens)
        path.append(child)


@contextmanager
def noted_calls() -> Iterator[set[str]]:
    """The Python functions that run within calls of entries."""
    found, own = set(), Compiled.__call__.__code__

    def note(frame: FrameType, event: str, _: Any) -> None:
        back = frame.f_back
        if event == "call" and back is not None and back.f_code is own and frame.f_code not in own.co_consts:
            found.add(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
    found.discard("typed")


@pytest.mark.slow
@pytest.mark.real
def test_machine_code_and_python_build_the_same_trees(table_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node for node, and so are the tables that are learned; and what was kept is loaded without compiling.

    Machine code shares the rows out to up to four threads, Python does all on one.
    """
    folder = table_folder / "machine"
    folder.mkdir(parents=True)
    for again in (False, True):
        linker = Linker(folder)
        machines = {entry: linker.entry(entry.python) for entry in compiling.ENTRIES}
        with trial(machines):
            exercise()
        with trial(machines), noted_calls() as calls:
            exercise()
        assert not calls  # else the exception of a signal may be lost
        if again:
            assert all(sum(machine.stats.cache_misses.values()) == 0 for machine in machines.values())
        else:  # counting references would take most of the time
            assert not any("NRT_incref" in code for code in linker._called(expect).inspect_llvm().values())
        for machine in machines.values():
            machine.disable_compile()
    for seed in range(60):
        noise = random.Random(seed)
        case = (seed, noise.randrange(1, 5), noise.randrange(1, 70), noise.choice([3, 40, 100_000]))
        sources = noise.choice([None, ("recycled", "suffix"), ("counts", "recent", "window"), ("reference",)])
        config = {"sources": sources, "ngram": noise.randrange(2, 6)}
        expected, threads = session(*case, **config), 1 + seed % 4
        monkeypatch.setattr(workspace, "threads_for", lambda operations, threads=threads: threads)
        called = machines if seed % 2 else {entry: direct(machine) for entry, machine in machines.items()}
        with trial(called):
            assert session(*case, **config) == expected
    shutil.rmtree(folder)
