"""Locks: no call waits for another one's work, and a forked child finds none of them held and all behind them sound."""

import ast
import copy
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from families import BY_NAME
from forks import ends_in_a_child, held_elsewhere, needs_fork
from tiny import tiny_model, words
from transformers import PreTrainedModel

import lade
from lade.base import locks
from lade.config import default as config
from lade.core import stats
from lade.entry import augment, refusal
from lade.facts import fingerprint
from lade.memory import pools
from lade.memory.warm import warming as warm
from lade.pace import shared
from lade.pace.cost import StepCost
from lade.target import probe, skipping
from lade.target.masks import layer_kinds
from lade.target.outputs import Outputs
from lade.target.skipset import SkipSet

SECONDS = 60  # until a thread counts as waiting for ever


@pytest.fixture
def model() -> PreTrainedModel:
    return copy.deepcopy(tiny_model(BY_NAME["llama"], "sdpa"))


# One call does not wait for another


class Waits(torch.Tensor):
    """Logits that are slow to read."""

    begun, go_on = threading.Event(), threading.Event()

    def float(self) -> torch.Tensor:  # type: ignore[override]
        self.begun.set()
        assert self.go_on.wait(SECONDS)
        return self.as_subclass(torch.Tensor).clone()


@pytest.mark.usefixtures("as_python")  # machine code copies no logits
@pytest.mark.parametrize("read", [lambda outputs: outputs.greedy(0, 0), lambda outputs: outputs.likeliest()[0][0, 0]])
def test_no_call_waits_for_another_ones_argmax(read: Callable[[Outputs], int]) -> None:
    """`functools.cached_property` of Python 3.11 has one lock for all objects of a class."""
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    Waits.begun.clear()
    Waits.go_on.clear()
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(read, Outputs(logits.as_subclass(Waits), [{0: 0}]))
        try:
            assert Waits.begun.wait(SECONDS)
            assert threads.submit(read, Outputs(logits, [{0: 0}])).result(SECONDS) == 1
            assert not slow.done()
        finally:
            Waits.go_on.set()
        assert slow.result(SECONDS) == 1


def probed(model: PreTrainedModel) -> str | None:
    return probe.probed_reason(model, layer_kinds(model.config), None)


@pytest.mark.parametrize(
    ("slow", "ask"),
    [
        ("lade.target.probe._probe", probed),
        ("lade.facts.fingerprint._hash", fingerprint.fingerprint),
        ("lade.pace.costfile.load", shared.shared_cost),
    ],
)
def test_no_model_waits_for_another_one(
    slow: str, ask: Callable[[Any], object], model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, begun, go_on = copy.deepcopy(model), threading.Event(), threading.Event()

    def work(of: Any, *args: object, **kwargs: object) -> str:
        if of is model:
            begun.set()
            assert go_on.wait(SECONDS)
        return "done"

    monkeypatch.setattr(slow, work)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(ask, model)
        try:
            assert begun.wait(SECONDS)
            threads.submit(ask, other).result(SECONDS)
            assert not first.done()
        finally:
            go_on.set()
        first.result(SECONDS)


def test_a_model_has_one_lock_of_its_own_that_goes_with_it(model: PreTrainedModel) -> None:
    per_model = locks.ModelLocks()
    assert per_model.of(model) is per_model.of(model) is not per_model.of(copy.deepcopy(model))
    assert len(per_model._locks) == 1


# Forks


def test_all_locks_are_safe_to_fork() -> None:
    """No module makes one by itself, nor a `cached_property`, which has one on Python 3.11."""
    package = Path(lade.__file__).parent
    for path in package.rglob("*.py"):
        if path.name != "locks.py" and path.relative_to(package).parts[0] not in ("applications", "models"):
            names = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
            names |= {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
            made = names & {"Lock", "RLock", "Condition", "Semaphore", "cached_property"}
            assert made <= ({"Lock"} if path.name == "pools.py" else set()), path  # there, the name of their type


def skip(model: PreTrainedModel) -> None:
    with skipping.Skipping(model, SkipSet((0,), ())).applied():
        model(**words(4))


def patch(model: PreTrainedModel) -> None:
    lade.augment_all()
    lade.restore_all()


def refuse(model: PreTrainedModel) -> None:
    with refusal.refusing(lambda model: None):
        pass


def decode(model: PreTrainedModel) -> None:
    lade.generate(model, **words(8), max_new_tokens=4)


USES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {  # name -> its lock, what takes it
    "augment": (lambda model: augment._lock, patch),
    "config": (lambda model: config._lock, lambda model: lade.config_lade(DEBUG=0)),
    "fingerprint": (lambda model: fingerprint._locks.of(model), fingerprint.fingerprint),
    "pool": (lambda model: pools.shared_pool(model, "anna").lock, lambda model: pools.shared_pool(model, "anna", 7)),
    "pools": (lambda model: pools._lock, lambda model: pools.shared_pool(model, "anna")),
    "probe": (lambda model: probe._locks.of(model), probed),
    "refusal": (lambda model: refusal._lock, refuse),
    "cost": (lambda model: shared.shared_cost(model)._lock, lambda model: shared.shared_cost(model).table(9, 9, 1)),
    "costs": (lambda model: shared._locks.of(model), shared.shared_cost),
    "skipping": (lambda model: skipping._lock, skip),
    "stats": (lambda model: stats._lock, decode),
    "warm": (lambda model: warm._lock, warm.cached),
    "warming": (lambda model: warm._computing, warm.warm_up),
}


@needs_fork
@pytest.mark.parametrize("use", USES)
def test_a_lock_that_another_thread_held_is_free_in_a_child(
    use: str, model: PreTrainedModel, default_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_of, work = USES[use]
    monkeypatch.setattr("lade.memory.warm.warming._computed", lambda *args: None)  # computing a table is not the point
    with held_elsewhere(lock_of(model)):
        assert ends_in_a_child(lambda: work(model))
        assert not lock_of(model).acquire(blocking=False)  # the parent's is held as before


@needs_fork
def test_a_child_decodes_whatever_was_held(model: PreTrainedModel) -> None:
    decode(model)
    with held_elsewhere(*locks._made):
        assert ends_in_a_child(lambda: decode(model))


@needs_fork
def test_what_forks_while_it_holds_a_lock_goes_on_holding_it() -> None:
    lock = locks.fork_safe_lock()

    def let_go_once() -> None:
        lock.release()
        with pytest.raises(RuntimeError):
            lock.release()

    with lock:
        assert ends_in_a_child(let_go_once)


def test_a_lock_is_forgotten_with_its_owner() -> None:
    lock = locks.fork_safe_lock()
    known = len(locks._made)
    del lock
    assert len(locks._made) == known - 1


# What a lock guards is sound wherever a fork finds it


def before_each_line(module: str, action: Callable[[int], object], work: Callable[[], object]) -> int:
    """Call `action` with the line's number before each line of a module's code that `work` runs. Returns how often."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        if frame.f_globals.get("__name__") != module:
            return None
        if event == "line":
            sys.settrace(None)
            action(frame.f_lineno)
            sys.settrace(trace)
            lines += 1
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return lines


@pytest.mark.parametrize("module", ["lade.pace.cost", "lade.pace.curve", "lade.pace.changes"])
@pytest.mark.parametrize("observed", [0, 30])
def test_costs_are_sound_in_the_middle_of_a_step(module: str, observed: int) -> None:
    cost = StepCost()
    for step in range(observed):
        cost.observe(1 + step % 16, 100, 1, 0.01 + 0.001 * (step % 16))
    cost.table(48, 100, 1)

    def work() -> None:
        cost.observe(16, 100, 1, 5.0)
        cost.observe(8, 5000, 3, 0.02)
        cost.table(48, 100, 1)
        cost.table(48, 5000, 3)

    stopped: list[StepCost] = []
    before_each_line(module, lambda line: stopped.append(copy.deepcopy(cost)), work)
    assert len(stopped) > 8
    for found in stopped:
        for context, rows in ((100, 1), (5000, 3)):
            table = found.table(48, context, rows)
            assert len(table) == 49
            assert all(1 <= one <= other for one, other in pairwise(table))
            found.observe(16, context, rows, 0.02)
            found.known(16, context, rows)
        assert all(len(logs) for logs in found.logs().values())


def fork_before_each_line(work: Callable[[], object], check: Callable[[], object], module: str) -> int:
    """Fork before each line of a module's code that `work` runs; `check` must hold in the child. Returns how often."""

    def fork(line: int) -> None:
        assert ends_in_a_child(check), f"{module}, line {line}"

    return before_each_line(module, fork, work)


@needs_fork
def test_refusing_is_sound_in_the_middle_of_a_change() -> None:
    def refused() -> None:
        with refusal.refusing(lambda model: "no"), pytest.raises(ValueError, match="beam search is not available: no"):
            refusal.GenerationMixin._beam_search(None)
        with (
            refusal.refusing(lambda model: "no"),
            pytest.raises(ValueError, match="assisted decoding is not available"),
        ):
            refusal.GenerationMixin._assisted_decoding(None)
        with pytest.raises(AttributeError):  # transformers' own again, which wants a model
            refusal.GenerationMixin._beam_search(None, None, None, None, None)

    assert fork_before_each_line(lambda: refuse(None), refused, "lade.entry.refusal") > 12  # type: ignore[arg-type]


@needs_fork
def test_skipping_is_sound_in_the_middle_of_a_change(model: PreTrainedModel) -> None:
    inputs = words(4)
    attention = model.model.layers[0].self_attn
    attention.forward = attention.forward  # one that stands on the instance, as some libraries put it there
    whole = model(**inputs).logits
    with skipping.Skipping(model, SkipSet((0,), ())).applied():
        without = model(**inputs).logits
    assert not torch.equal(whole, without)

    def left_out() -> None:
        with skipping.Skipping(model, SkipSet((0,), ())).applied():
            assert torch.equal(model(**inputs).logits, without)
        skipping._skipped.set(frozenset())  # of the scope that was forked in
        assert torch.equal(model(**inputs).logits, whole)
        assert "forward" in vars(attention)

    assert fork_before_each_line(lambda: skip(model), left_out, "lade.target.skipping") > 20


@needs_fork
def test_patching_is_sound_in_the_middle_of_a_change(model: PreTrainedModel) -> None:
    def works() -> None:
        lade.augment_all()
        model.generate(**words(8), max_new_tokens=4)
        assert lade.last_stats().new_tokens == 4  # type: ignore[union-attr]
        lade.restore_all()
        stats._last.set(None)
        model.generate(**words(8), max_new_tokens=4)
        assert lade.last_stats() is None

    works()
    assert fork_before_each_line(lambda: patch(model), works, "lade.entry.augment") > 10
