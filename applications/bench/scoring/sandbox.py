"""Runs generated code in a sandboxed process, on Linux on x86-64 or aarch64.

Prevented: new processes or threads, signals to other processes, network access, writing, renaming or removing files,
excessive CPU time, wall time and memory, standard input and output. The environment is empty, the working folder is
new, and only Python's standard library can be imported.

Not prevented: the code can read every file that this user can read, though its only output is whether it passed; it
uses one core; malicious code can pretend to pass; a vulnerability of the kernel or of Python is a way out; as root,
opening a device for reading can have effects. For an untrusted model, use a user with few rights or a container.
"""

import json
import os
import platform
import selectors
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lade.applications.bench.scoring.seccomp import MACHINES, filter_for

JAIL = Path(__file__).with_name("jail.py")
READY, PASSED = b"ready", 77  # as in jail.py, which imports nothing from this package
STARTUP_SECONDS = 600.0  # for the interpreter to start on a busy machine, before the program runs
ENVIRONMENT = {"PYTHONHASHSEED": "0"}  # the order of sets is the same in every run
FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8")  # no user or site packages; -I would ignore the hash seed

# Calls that must fail: a self-test, run once per process.
ATTEMPTS = """
import os, socket
attempts = (
    os.fork,
    socket.socket,
    lambda: os.kill(os.getppid(), 0),
    lambda: open("made", "w"),
    lambda: os.mkdir("made"),
)
for attempt in attempts:
    try:
        attempt()
    except PermissionError:
        continue
    raise SystemExit
"""


class SandboxError(RuntimeError):
    """The sandbox itself failed; the result of the code is unknown."""


@dataclass(frozen=True)
class Limits:
    """Limits of one program.

    Attributes:
        cpu_seconds: CPU time, with the interpreter's start; independent of the machine's load.
        wall_seconds: after this time a sleeping program is stopped; one that waits for a CPU is not.
        memory_bytes: address space, which is more than the memory in use.
    """

    cpu_seconds: int = 5
    wall_seconds: float = 10.0
    memory_bytes: int = 1 << 30


def passes(program: str, limits: Limits = Limits()) -> bool:
    """Whether the program ends within the limits and without an exception.

    Results are cached: the same program runs once.

    Raises:
        SandboxError: this machine cannot sandbox a program, or cannot start one.
    """
    require_confinement()
    return _passes(program, limits)


@lru_cache(maxsize=1)
def require_confinement() -> None:
    """SandboxError if the sandbox does not work on this machine."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        raise SandboxError(
            f"generated code is run on Linux on {' or '.join(MACHINES)} only, where it can be confined; "
            f"this is {sys.platform} on {platform.machine()}"
        )
    if not _passes(ATTEMPTS, Limits()):
        raise SandboxError("this machine does not confine generated code as it should: it is not run")


@lru_cache(maxsize=4096)
def _passes(program: str, limits: Limits) -> bool:
    with tempfile.TemporaryDirectory(prefix="lade-sandbox-") as folder:
        try:
            process = subprocess.Popen(
                [sys.executable, *FLAGS, str(JAIL)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=ENVIRONMENT,
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"the sandbox cannot be started: {error}") from error
        with process:
            try:
                return _verdict(process, program, limits)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def _verdict(process: subprocess.Popen[bytes], program: str, limits: Limits) -> bool:
    answer = _answer(process, _order(program, limits))
    if answer != READY:
        raise SandboxError(f"the sandbox did not start: {answer.decode(errors='replace').strip() or 'no message'}")
    while True:
        try:
            return process.wait(limits.wall_seconds) == PASSED
        except subprocess.TimeoutExpired:
            if _waits(process):
                return False


def _waits(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process sleeps. A running one may continue: its CPU time is limited."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def _order(program: str, limits: Limits) -> bytes:
    bounds = {"cpu_seconds": limits.cpu_seconds, "memory_bytes": limits.memory_bytes}
    order = {"program": program, "limits": bounds, "filter": filter_for(platform.machine()).hex()}
    return json.dumps(order).encode()


def _answer(process: subprocess.Popen[bytes], order: bytes) -> bytes:
    """The jail's output, which ends before the program starts."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(order)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(STARTUP_SECONDS):
            return b"no answer within %d seconds" % STARTUP_SECONDS
    return process.stdout.read()
