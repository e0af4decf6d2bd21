"""What is read of rows of logits in one pass, against torch: as Python here, as machine code with the marker `real`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lade.base.compiled import Linker, trial
from lade.core import topk
from lade.core.readout import READ_ROWS, Readout, read_out
from lade.core.topk import likeliest

pytestmark = pytest.mark.usefixtures("as_python")

PRECISIONS = (torch.float32, torch.bfloat16)


@st.composite
def cases(draw: st.DrawFn, longest: int) -> tuple[Tensor, int, int, np.ndarray]:
    """Logits, ids of the top-k, k, and inverse temperatures."""
    size = draw(st.integers(1, longest))
    rows, within, seed = draw(st.integers(1, 3)), draw(st.integers(max(1, size - 3), size)), draw(st.integers(0, 999))
    noise = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, size, generator=noise)
    ruled_out = torch.rand(rows, size, generator=noise) < draw(st.sampled_from([0, 0.5, 1]))
    logits = logits.masked_fill(ruled_out, draw(st.sampled_from([-torch.inf, 0.0, -0.0])))
    if draw(st.booleans()):
        logits = logits.round()  # many ties
    heats = torch.rand(rows, generator=noise).numpy() + 0.5
    return logits.to(draw(st.sampled_from(PRECISIONS))), within, draw(st.integers(1, min(8, within))), heats


@contextmanager
def bounds_from(size: int) -> Iterator[None]:
    """Probabilities are upper bounds from so many logits on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topk, "EXACT", size)
        yield


def check(logits: Tensor, within: int, k: int, heats: np.ndarray) -> None:
    before = logits.clone()
    found = read_out(logits, within, k, heats)
    assert torch.equal(logits, before)
    assert found.greedy.tolist() == logits.argmax(-1).tolist()
    assert not found.nan.any()
    first = logits[:, :within].float()
    in_order = first.sort(dim=-1, descending=True, stable=True).indices[:, :k]  # the lowest id of equals comes first
    assert found.tokens.tolist() == in_order.tolist()
    _, probabilities = likeliest(first, k, torch.from_numpy(heats)[:, None])
    expected = probabilities.double().numpy()
    if len(np.unique(first)) == first.numel():  # else torch may choose other groups of those with equal maxima
        assert found.probabilities == pytest.approx(expected, rel=2e-5, abs=1e-9, nan_ok=True)
    exact = (torch.from_numpy(heats)[:, None] * first.double()).softmax(-1).gather(1, in_order).numpy()
    assert (np.isnan(exact) | (found.probabilities >= exact * (1 - 2e-5))).all()
    assert found.probabilities.sum(-1)[~np.isnan(exact).any(-1)].max(initial=0) <= 1 + 2e-5


@settings(max_examples=40)
@given(cases(longest=90))
def test_it_is_what_torch_finds(case: tuple[Tensor, int, int, np.ndarray]) -> None:
    with bounds_from(30):
        check(*case)


def said(row: list[float], k: int = 2) -> Readout:
    return read_out(torch.tensor([row]), len(row), k, np.ones(1, np.float32))


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000 - (1 << 32), 0x7F800001])
@pytest.mark.parametrize("place", [0, 4, 6])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_first_nan_is_chosen(precision: torch.dtype, place: int, bits: int) -> None:
    """Whatever its sign and payload; as torch and plain decoding choose. Rows beside it are read as ever."""
    logits = torch.tensor([[0.0, 2.0, 1.0, 0.0, torch.inf, -torch.inf, 3.0]] * 3)
    logits[1, place : place + 1].view(torch.int32).fill_(bits | 1 << 16)
    found = read_out(logits.to(precision), 7, 2, np.ones(3, np.float32))
    assert found.greedy.tolist() == logits.argmax(-1).tolist() == [4, place, 4]
    assert found.nan.tolist() == [False, True, False]
    assert found.tokens[::2].tolist() == [[4, 6], [4, 6]]


def test_a_nan_beyond_the_ids_of_the_top_k_is_seen() -> None:
    found = read_out(torch.tensor([[1.0, 2.0, torch.nan]]), 2, 2, np.ones(1, np.float32))
    assert (found.greedy.tolist(), found.nan.tolist()) == ([2], [True])


def test_infinite_logits_have_the_probabilities_of_softmax() -> None:
    assert np.isnan(said([1.0, torch.inf, 0.0]).probabilities).all()
    assert np.isnan(said([-torch.inf] * 3).probabilities).all()
    assert said([-torch.inf, 5.0, -torch.inf]).probabilities.tolist() == [[1, 0]]


def test_rows_that_are_not_contiguous() -> None:
    logits = torch.arange(12.0).view(3, 4).T
    assert read_out(logits, 3, 1, np.ones(4, np.float32)).greedy.tolist() == [2, 2, 2, 2]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    folder: Path = tmp_path_factory.mktemp("machine")
    return Linker(folder).entry(READ_ROWS.python)  # type: ignore[no-any-return]


@pytest.mark.real
@pytest.mark.parametrize("number", [1, 3])
@settings(max_examples=100)
@given(cases(longest=200) | cases(longest=60_000))
def test_machine_code_finds_it_too(
    machine: Callable[..., Any], number: int, case: tuple[Tensor, int, int, np.ndarray]
) -> None:
    with trial({READ_ROWS: machine}), pytest.MonkeyPatch.context() as patch:
        patch.setattr("lade.core.readout.threads_for", lambda operations: number)
        check(*case)


@pytest.mark.real
def test_machine_code_finds_nan_everywhere(machine: Callable[..., Any]) -> None:
    with trial({READ_ROWS: machine}):
        for size in (5, 64, 515, 2049):
            for precision in PRECISIONS:
                logits = torch.randn(size, size).fill_diagonal_(torch.nan).to(precision)
                found = read_out(logits, size - 1, 4, np.ones(size, np.float32))
                assert found.nan.all()
                assert found.greedy.tolist() == [*range(size)]
