"""Several processes of a run, forked from this one, which has imported all that they need: gloo on the loopback."""

import json
import os
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

PATIENCE = 300.0  # seconds until a run counts as hanging


def start(folder: Path, ranks: int, work: Callable[[int], Any], joined: bool = True) -> list[int]:
    """Fork the processes; rank r writes what `work(r)` returns, or its error, into the folder. Returns their ids.

    Args:
        joined: whether they join a process group first.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since Python 3.12, of forks beside threads
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                _work(folder, ranks, rank, work, joined)
            children.append(child)
    return children


def _work(folder: Path, ranks: int, rank: int, work: Callable[[int], Any], joined: bool) -> None:
    try:
        torch.set_num_threads(1)
        if joined:
            _join(folder, ranks, rank)
        done = {"value": work(rank)}
    except BaseException as error:  # noqa: BLE001 - told to the parent
        done = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    try:
        part = folder / f"{rank}.part"
        part.write_text(json.dumps(done))
        part.rename(folder / f"{rank}.json")
    finally:
        os._exit(0)


def _join(folder: Path, ranks: int, rank: int) -> None:
    known = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ.update(known)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)


def results(folder: Path, children: list[int], patience: float = PATIENCE) -> list[dict[str, Any] | None]:
    """What each process has written, once all have ended; `None` where one was killed. None may hang."""
    end, status = time.monotonic() + patience, dict.fromkeys(children)
    while any(each is None for each in status.values()) and time.monotonic() < end:
        for child in children:
            if status[child] is None and os.waitpid(child, os.WNOHANG)[0]:
                status[child] = True
        time.sleep(0.01)
    hanging = [child for child in children if status[child] is None]
    for child in hanging:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert not hanging, f"{len(hanging)} processes hang"
    files = [folder / f"{rank}.json" for rank in range(len(children))]
    return [json.loads(file.read_text()) if file.exists() else None for file in files]


def run(folder: Path, ranks: int, work: Callable[[int], Any], patience: float = PATIENCE) -> list[Any]:
    """What `work(rank)` returns on each rank, through JSON; all must get through."""
    folder.mkdir(parents=True, exist_ok=True)
    found = results(folder, start(folder, ranks, work), patience)
    for each in found:
        assert each is not None
        assert "error" not in each, each["trace"]
    return [each["value"] for each in found if each is not None]
