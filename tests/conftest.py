"""Fixtures that tests of several files share, and the settings that all of them run under.

Nothing here imports a model library before `pytest_configure`: the hub's client reads the environment once.
"""

from __future__ import annotations

import copy
import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import isolation
import machinecode
import pytest

import lade

if TYPE_CHECKING:
    from identity import Identity
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# The same examples on every run, and none remembered: a red test stays red until the code changes.
hypothesis.settings.register_profile("lade", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("lade")


def pytest_configure(config: pytest.Config) -> None:
    """No test sees the user's own folders, settings or network, nor what lies beside the repository."""
    config.add_cleanup(isolation.begin())
    machinecode.begin(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector finds nothing among what is imported: it passes only over what tests leave, and rarely."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(7_000, 10, 10)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow programs start first: where two processes share them, both end at about the same time."""
    items.sort(key=lambda item: not all(map(item.get_closest_marker, ("real", "slow"))))


@pytest.fixture(scope="module")
def small_weights() -> Iterator[None]:
    """Weights of tiny models are packed, too. Of a module, as properties want."""
    from lade.weights import packed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "LEAST", dict.fromkeys(packed.LEAST, 1))
        yield


@pytest.fixture(scope="session", autouse=True)
def empty_working_folder() -> Iterator[None]:
    """Relative paths lead nowhere."""
    before = Path.cwd()
    os.chdir(isolation.working_folder())
    yield
    os.chdir(before)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models run faster, and always alike, on one thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def fast_products() -> Iterator[None]:
    """torch counts as fast in half precision, so that what is loaded in which dtype is the same on every machine.

    Where oneDNN packs no bfloat16, weights lie in blocks nevertheless.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lade.weights.blocks.slow_on_cpu", lambda dtype: True)  # imports what must know the truth, too
        patch.setattr("lade.facts.products.told", lambda dtype: True)
        yield


@pytest.fixture
def slow_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch counts as slow in half precision on this machine's CPU, and there is memory enough; nothing was said."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("lade.facts.products.told", lambda dtype: dtype.itemsize > 2)
    for which in ("total", "available"):
        monkeypatch.setattr(f"lade.facts.memory.{which}", lambda: 1 << 40)
    monkeypatch.setattr("lade.models.dtype._noticed", set())


@pytest.fixture(scope="session", autouse=True)
def machine_code(request: pytest.FixtureRequest) -> None:
    """Tests that decode draft as machine code, which takes less time, wherever they do not ask for `as_python`."""
    machinecode.load(request.config, len(request.session.items))


@pytest.fixture(scope="module")
def as_python() -> Iterator[None]:
    """The drafting loops run as Python in all tests of the module, so that what a test changes in them is seen."""
    with machinecode.unloaded():
        yield


@pytest.fixture(scope="session")
def identity() -> Iterator[Identity]:
    """The session's tally of compared tokens: the last word is that ties are rare."""
    from identity import Identity

    tally = Identity()
    yield tally
    tally.assert_ties_are_rare()


@pytest.fixture
def augmented(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`model.generate` decodes with lookahead inside the test."""
    monkeypatch.delenv("USE_LADE", raising=False)
    lade.augment_all()
    yield
    lade.restore_all()


@pytest.fixture
def default_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process-wide settings as they are at the start, and put back behind the test."""
    monkeypatch.setattr("lade.config.default._default", lade.LookaheadConfig())
    monkeypatch.setattr("lade.config.default._noticed", False)


@pytest.fixture
def table_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where warm tables are kept inside the test; not there yet."""
    monkeypatch.setenv("LADE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm tables of the usual number of texts, with 8 tokens each: computed in a fraction of the time."""
    monkeypatch.setattr("lade.memory.warm.texts.LENGTH", 8)


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(scope="session")
def shipped() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The trained model that ships, and its tokenizer, set up for batches. Nobody changes them."""
    model, tokenizer = lade.models.load("stories260K")
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.unk_token
    return model, tokenizer


@pytest.fixture(scope="session")
def shipped_and_warm(
    shipped: tuple[PreTrainedModel, PreTrainedTokenizerBase], tmp_path_factory: pytest.TempPathFactory
) -> PreTrainedModel:
    """A copy of it that has its warm table. Nobody changes it."""
    model, folder = copy.deepcopy(shipped[0]), tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder  # the workers of a run make one table
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LADE_CACHE", str(shared / "tables"))
        lade.warm_up(model)
    return model
