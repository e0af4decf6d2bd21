"""The sandbox: what passes, what is stopped, and what is its own failure."""

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.scoring import jail, sandbox, seccomp
from lade.applications.bench.scoring.sandbox import Limits, SandboxError, passes, require_confinement
from lade.applications.bench.suites import SUITES
from lade.applications.bench.suites.sources import SHIPPED, read_rows

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in seccomp.MACHINES, reason="confines on Linux only"
)
BRIEF = Limits(cpu_seconds=1)
WAITING = "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()"
SHORT = Limits(wall_seconds=0.1)  # for a program that waits


@pytest.fixture
def fresh() -> None:
    """As in a process that has run nothing yet."""
    require_confinement.cache_clear()
    sandbox._passes.cache_clear()


def refused(*attempts: str, setup: str = "import os") -> bool:
    """Whether every one of these statements is answered with a PermissionError."""
    tries = "\n".join(
        f"try:\n    {attempt}\nexcept PermissionError: pass\nelse: raise SystemExit" for attempt in attempts
    )
    return passes(f"{setup}\n{tries}")


# What passes


@pytest.mark.parametrize(
    "program",
    [
        "",
        "import collections, dataclasses, datetime, hashlib, heapq, itertools, math, random, re, typing",
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int = 1\nassert A().x == 1",
        "print('x' * 1_000_000)",
        "import sys; sys.stderr.write('x'); sys.stdout.flush()",
        "assert open('/proc/self/status').read()",
        "class A:\n    def __del__(self): raise SystemExit\nA()",
        "if __name__ == '__main__': raise SystemExit",
    ],
)
def test_code_without_a_fault_passes(program: str) -> None:
    assert passes(program) is True


@pytest.mark.parametrize(
    "program",
    [
        "assert False",
        "def f(:",
        "1 / 0",
        "raise SystemExit",
        "raise SystemExit(0)",
        "import os; os._exit(0)",
        "raise KeyboardInterrupt",
        "input()",
        "def f(): return f()\nf()",
        "import ctypes; ctypes.string_at(0)",
        "x = '\ud800'",
        "(" * 100_000,
        "import threading; threading.Thread(target=print).start()",
    ],
)
def test_code_that_does_not_come_to_its_end_fails(program: str) -> None:
    assert passes(program, BRIEF) is False


def test_the_same_program_is_run_once(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    started = []

    class Counted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: object, **options: object) -> None:
            started.append(arguments)
            super().__init__(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr("subprocess.Popen", Counted)
    verdicts = [passes("import random; assert random.random() < 0.5") for _ in range(6)]
    assert len(set(verdicts)) == 1
    assert len(started) == 2  # the first looks whether the sandbox holds


# Limits


def test_an_endless_loop_is_cut() -> None:
    assert passes("while True:\n    try:\n        while True: pass\n    except BaseException: pass", BRIEF) is False


def test_waiting_for_ever_is_cut() -> None:
    assert passes(WAITING, SHORT) is False


def test_memory_is_bounded() -> None:
    block = "x = bytearray(400 << 20)"
    assert passes(block, Limits(memory_bytes=1 << 30)) is True
    assert passes(block, Limits(memory_bytes=300 << 20)) is False
    assert passes("x = []\nwhile True: x.append(bytearray(1 << 20))", Limits(memory_bytes=200 << 20)) is False


# Confinement


def test_no_process_is_made() -> None:
    assert refused("os.fork()", "os.posix_spawn('/bin/true', ['true'], {})", "os.execv('/bin/true', ['true'])")
    assert passes("import os\nwhile True: os.fork()", BRIEF) is False
    assert refused("subprocess.run(['/bin/true'])", "multiprocessing.Process(target=print).start()", setup=MODULES)


MODULES = "import multiprocessing, subprocess"


def test_no_process_outlives_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    copy = tmp_path / "jail.py"  # told from all other jails of the machine by its name
    copy.write_bytes(sandbox.JAIL.read_bytes())
    monkeypatch.setattr(sandbox, "JAIL", copy)
    daemon = "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while True: pass"
    for program, limits in ((daemon, BRIEF), (WAITING, SHORT)):
        assert passes(program, limits) is False
        assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(copy).encode() in contents(path)]


def contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # a process that has ended
        return b""


def test_no_other_process_is_disturbed() -> None:
    assert refused(
        "os.kill(os.getppid(), 0)",
        "os.killpg(os.getpgid(os.getppid()), 0)",
        "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (9, 9))",
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        setup="import os, resource",
    )


def test_no_network() -> None:
    assert refused(
        "socket.socket()",
        "socket.socketpair()",
        "socket.socket(socket.AF_UNIX)",
        "socket.create_connection(('127.0.0.1', 1))",
        setup="import socket",
    )


def test_limits_cannot_be_taken_back() -> None:
    assert passes(
        "import resource\n"
        "for what in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE):\n"
        "    try: resource.setrlimit(what, (1 << 40, 1 << 40))\n"
        "    except ValueError: pass\n"
        "    else: raise SystemExit"
    )


def test_files_are_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("as it was")
    statements = (
        "open('here', 'w')",
        f"open({str(tmp_path / 'made')!r}, 'w')",
        f"open({str(kept)!r}, 'a')",
        f"open({str(kept)!r}, 'r+')",
        f"os.open({str(kept)!r}, os.O_RDONLY | os.O_TRUNC)",
        f"os.open({str(tmp_path)!r}, os.O_TMPFILE | os.O_RDWR)",
        f"os.truncate({str(kept)!r}, 0)",
        f"os.unlink({str(kept)!r})",
        f"os.rename({str(kept)!r}, {str(tmp_path / 'made')!r})",
        f"os.link({str(kept)!r}, {str(tmp_path / 'made')!r})",
        f"os.symlink({str(kept)!r}, {str(tmp_path / 'made')!r})",
        f"os.mkdir({str(tmp_path / 'made')!r})",
        f"os.rmdir({str(tmp_path)!r})",
        f"os.chmod({str(kept)!r}, 0)",
        f"os.utime({str(kept)!r}, (0, 0))",
        f"os.chown({str(kept)!r}, 1, 1)",
        f"os.setxattr({str(kept)!r}, 'user.a', b'b')",
        f"os.mkfifo({str(tmp_path / 'made')!r})",
        f"os.chdir({str(tmp_path)!r})",
        "os.memfd_create('a')",
    )
    before = what_it_is(kept)
    assert refused(*statements)
    assert list(tmp_path.iterdir()) == [kept]
    assert (kept.read_text(), what_it_is(kept)) == ("as it was", before)


def what_it_is(path: Path) -> tuple[int, ...]:
    """All but when it was last read."""
    found = path.stat()
    return found.st_mode, found.st_nlink, found.st_uid, found.st_gid, found.st_size, found.st_mtime_ns


def test_it_knows_nothing_of_its_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LADE_TEST_SECRET", "secret")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    assert passes("import os; assert set(os.environ) <= {'PYTHONHASHSEED', 'LC_CTYPE'}, os.environ")
    assert passes("import os; assert os.listdir() == []")
    assert passes("import sys; assert sys.argv == ['x'] or 'program' not in ''.join(sys.argv)")
    for module in ("torch", "lade", "seccomp", "pytest"):
        assert passes(f"try:\n    import {module}\nexcept ModuleNotFoundError: pass\nelse: raise SystemExit")


def test_sets_have_one_order() -> None:
    assert passes("import sys; assert sys.flags.hash_randomization == 0")


@pytest.mark.parametrize("program", ["", "1 / 0", WAITING])
def test_nothing_is_left_behind(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    passes(program, SHORT)
    assert not list(tmp_path.iterdir())


# Failures of its own


def test_the_jail_and_its_keeper_agree() -> None:
    assert (sandbox.READY, sandbox.PASSED) == (jail.READY, jail.PASSED)


def test_a_sandbox_that_does_not_start_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh: None) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(SandboxError, match=r"cannot be started: .*No such file"):
        passes("")
    monkeypatch.undo()
    monkeypatch.setattr(sandbox, "JAIL", tmp_path / "jail.py")
    with pytest.raises(SandboxError, match=r"did not start: .*can't open file"):
        passes("")


def test_a_filter_that_the_kernel_refuses_is_told(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setattr(sandbox, "filter_for", lambda machine: b"\xff" * 8)
    with pytest.raises(SandboxError, match=r"did not start: (.|\n)*prctl 22: Invalid argument"):
        passes("")


def test_nothing_runs_in_a_sandbox_with_a_hole(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    everything = seccomp.struct.pack("=HBBI", seccomp.RETURN, 0, 0, seccomp.ALLOW)
    monkeypatch.setattr(sandbox, "filter_for", lambda machine: everything)
    for _ in range(2):
        with pytest.raises(SandboxError, match="does not confine generated code as it should"):
            passes("")


def test_other_machines_are_named(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxError, match=r"on Linux on x86_64 or aarch64 only, .* this is linux on riscv64"):
        passes("")


def test_an_interrupt_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupt(process: subprocess.Popen[bytes], *_: object) -> bytes:
        started.append(process)
        raise KeyboardInterrupt

    require_confinement()
    monkeypatch.setattr(sandbox, "_answer", interrupt)
    with pytest.raises(KeyboardInterrupt):
        passes("while True: pass  # interrupted")
    assert started[0].returncode == -9


# Solutions of the data sets' own


def solved(name: str) -> dict[str | int, str]:
    if name == "human_eval":
        rows = read_rows(SHIPPED / "human_eval/HumanEval.jsonl.gz")
        return {row["task_id"]: row["canonical_solution"] for row in rows}
    return {row["task_id"]: row["code"] for row in read_rows(SHIPPED / "mbpp/test.jsonl.gz")}


def judge(name: str, prompt: Prompt, completion: str) -> bool | None:
    score = SUITES[name].score
    assert score is not None
    return score(prompt, completion, True)


@pytest.mark.parametrize("name", ["human_eval", "mbpp"])
def test_solutions_pass_and_others_do_not(name: str) -> None:
    solutions, prompts = solved(name), SUITES[name].load()
    for prompt in prompts[::41]:
        solution = solutions[prompt.id]
        assert judge(name, prompt, solution) is True, prompt.id
        assert judge(name, prompt, "    return None\n") is False, prompt.id
    first = prompts[0]
    fenced = f"Here:\n```python\n{first.text if name == 'human_eval' else ''}{solutions[first.id]}\n```\n"
    assert judge(name, first, fenced) is True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "which", "cut"), [("human_eval", slice(None, None, 6), set()), ("mbpp", slice(1, None, 30), {342})]
)
def test_solutions_of_the_data_sets_pass(name: str, which: slice, cut: set[int]) -> None:
    """But those that the data set's usual stops cut: 342 has a class behind an import."""
    solutions = solved(name)
    prompts = SUITES[name].load()[which]
    assert {prompt.id for prompt in prompts if not judge(name, prompt, solutions[prompt.id])} == cut
