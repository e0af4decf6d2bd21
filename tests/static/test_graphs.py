"""What is captured as a CUDA graph, in which order, with a stand-in for CUDA."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import BY_NAME
from tiny import tiny_model

from lade.core.tree import chain
from lade.static import graphs as graphs_module
from lade.static.graphs import WARM_UPS, Graphs, capture
from lade.static.inputs import StepRow
from lade.static.shelf import shapes_of
from lade.static.slots import StaticSlots
from lade.static.step import StaticStep

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


class Captures:
    """A stand-in for captures of a device: what they were asked to compute, with lade's products or without."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        seconds: dict[bool, float],
        fails: bool = False,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        model = tiny_model(BY_NAME["llama"], "sdpa", dtype)
        slots = StaticSlots(shapes_of(model), 1, 100, DEVICE)
        self.graphs, self.made, self.runs = Graphs(StaticStep(model, slots)), list[bool](), dict[Any, bool]()
        self.graphs.captures, slots.reach.kernels, self.fails = True, True, fails
        monkeypatch.setattr(graphs_module, "capture", self.capture)
        monkeypatch.setattr(graphs_module, "least_seconds", lambda run, device: seconds[self.runs[run]])

    def capture(self, compute: Callable[[], object], device: object, pool: object) -> tuple[object, object]:
        multiplies = next(reversed(self.graphs.step.multiplies.values()), True)
        if multiplies and self.fails:
            raise ValueError("no such program")
        self.made.append(multiplies)
        run = functools.partial(object)
        self.runs[run] = multiplies
        return run, pool

    def step(self, nodes: int) -> bool:
        """Whether the step of so many nodes that is replayed was captured with lade's products."""
        size = graphs_module.size_of([row := StepRow(0, chain([3] * nodes, asked=True), 5)])
        self.graphs.replay(size, [row])
        return self.runs[self.graphs.sizes[size].run]


@pytest.mark.parametrize("faster", [False, True])
def test_the_faster_products_are_replayed(monkeypatch: pytest.MonkeyPatch, faster: bool) -> None:
    """Both are captured once for few tokens and once for more; larger slots know which it was."""
    captures = Captures(monkeypatch, {faster: 1.0, not faster: 1.1})
    captures.step(96)
    assert len(captures.made) == 1, "no kernel takes so many"
    del captures.made[:]
    assert [captures.step(nodes) for nodes in (1, 4, 16)] == [faster] * 3
    assert captures.made == [False, True, faster, faster]
    assert [captures.step(nodes) for nodes in (24, 64)] == [faster] * 2
    assert captures.made == [False, True, faster, faster, False, True, faster]
    assert captures.graphs.step.multiplies == {16: faster, 64: faster}
    assert captures.graphs.larger(400).step.multiplies is captures.graphs.step.multiplies


def test_products_that_a_device_does_not_compile_are_those_of_pytorch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    captures = Captures(monkeypatch, {False: 1.0, True: 0.5}, fails=True)
    assert not captures.step(1)
    assert "products of static steps are PyTorch's: ValueError: no such program" in caplog.text
    assert captures.graphs.captures, "steps are captured all the same"
    assert captures.graphs.failure is None


def test_steps_in_float32_are_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    captures = Captures(monkeypatch, {}, dtype=torch.float32)
    captures.step(1)
    assert len(captures.made) == 1
