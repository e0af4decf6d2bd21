"""What is captured as a CUDA graph, in which order, with a stand-in for CUDA."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from lade.static.graphs import WARM_UPS, capture

DEVICE = torch.device("cpu")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a capture does, in its order."""
    done: list[str] = []
    stream = SimpleNamespace(wait_stream=lambda other: done.append("wait"))
    graph = SimpleNamespace(pool=lambda: "pool", replay=lambda: done.append("replay"))

    @contextlib.contextmanager
    def captured(own: object, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        assert own is graph
        done.append(f"begin in {pool}, {capture_error_mode}")
        yield
        done.append("end")

    for name, stand_in in {
        "CUDAGraph": lambda: graph,
        "Stream": lambda device: stream,
        "current_stream": lambda device: stream,
        "stream": lambda own: contextlib.nullcontext(),
        "graph": captured,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: done.append("clear"), raising=False)
    return done


def test_a_graph_has_the_workspace_of_cublas_in_its_own_memory(calls: list[str]) -> None:
    """What the runs before it took is let go, and others do not get what it has taken."""
    run, pool = capture(lambda: calls.append("compute"), DEVICE)
    warm = ["wait", *["compute"] * WARM_UPS, "wait"]
    assert calls == [*warm, "clear", "begin in None, thread_local", "compute", "end", "clear"]
    assert pool == "pool"
    del calls[:]
    run()
    assert calls == ["replay"]


def test_it_is_let_go_where_a_capture_fails(calls: list[str]) -> None:
    def compute() -> None:
        calls.append("compute")
        if len(calls) > WARM_UPS + 3:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        capture(compute, DEVICE, "pool")
    assert calls[-2:] == ["compute", "clear"]
