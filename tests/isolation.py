"""What keeps tests apart from whoever runs them: folders of their own, no settings of the user's, no network.

Knows nothing of lade but the names of its environment variables.
"""

import ipaddress
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOREIGN = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "DATASETS_", "XDG_", "LADE_")  # beginnings of what a user may set
SETTINGS = (
    *("USE_LADE", "LOAD_LADE", "COLOR_PRINT", "CHAT", "TORCH_HOME", "FORCE_COLOR", "NO_COLOR", "COLUMNS"),
    "PYTHONDONTWRITEBYTECODE",  # without what was compiled, every worker of a run reads all modules for seconds
)
KEPT = "LADE_DATA"  # optional local data, which tests skip without
FOLDERS = {  # of the tests' own, under one temporary folder
    "HOME": "home",
    "USERPROFILE": "home",
    "XDG_CACHE_HOME": "home/.cache",
    "LADE_CACHE": "caches",
    "HF_HOME": "hub",
    "MPLCONFIGDIR": "matplotlib",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
}
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
ALONE = {"LADE_COMPILED": "0", "OMP_NUM_THREADS": "1"}  # no compiler, and no threads that a fork would lose
GPU = Path("/dev/nvidiactl")
INTERPRETED = {} if GPU.exists() else {"TRITON_INTERPRET": "1"}  # kernels run without a GPU, by triton's interpreter
SET = OFFLINE | ALONE | INTERPRETED

_root = Path()


def begin() -> Callable[[], None]:
    """Set everything up, for this process and those that it starts; returns what undoes it."""
    global _root
    folder = tempfile.TemporaryDirectory(prefix="lade-tests-", ignore_cleanup_errors=True)
    _root = Path(folder.name).resolve()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so its children
    patch = pytest.MonkeyPatch()
    for name in list(os.environ):
        if name != KEPT and (name.startswith(FOREIGN) or name in SETTINGS):
            patch.delenv(name)
    for name, part in FOLDERS.items():
        (_root / part).mkdir(parents=True, exist_ok=True)
        patch.setenv(name, str(_root / part))
    for name, value in SET.items():
        patch.setenv(name, value)
    patch.setattr(socket.socket, "connect", _near(socket.socket.connect))
    patch.setattr(socket.socket, "connect_ex", _near(socket.socket.connect_ex))
    patch.setattr(socket, "getaddrinfo", _known(socket.getaddrinfo))

    def end() -> None:
        patch.undo()
        folder.cleanup()

    return end


def working_folder() -> Path:
    """An empty folder in an empty folder."""
    folder = _root / "working" / "folder"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _near(connect: Callable[..., Any]) -> Callable[..., Any]:
    """The method of a socket, for addresses of this machine alone."""

    def guarded(self: socket.socket, address: Any) -> Any:
        if isinstance(address, tuple):
            _check(address[0])
        return connect(self, address)

    return guarded


def _known(resolve: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(host: Any, *args: Any, **kwargs: Any) -> Any:
        _check(host)
        return resolve(host, *args, **kwargs)

    return guarded


def _check(host: Any) -> None:
    if not _is_here(host.decode() if isinstance(host, bytes) else host):
        pytest.fail(f"a test asked the network for {host!r}")  # no Exception, which callers would take for a bad line


def _is_here(host: str | None) -> bool:
    if host in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(str(host)).is_loopback
    except ValueError:
        return False
