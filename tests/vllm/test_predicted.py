"""What is read of a step's logits: the same by machine code and by torch."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from lade.base.compiled import viewed
from lade.core.readout import READ_ROWS
from lade.memory.predictions import TOP
from lade.vllm import predicted
from lade.vllm.predicted import Lines, Logits, Outputs


def outputs(logits: torch.Tensor) -> Outputs:
    reader = Logits()
    reader.wrap(lambda: logits)()
    return reader.take()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lines", [3, predicted.LINES + 2])
def test_machine_code_reads_what_torch_does(dtype: torch.dtype, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    ranks = torch.stack([torch.randperm(200, generator=generator) for _ in range(lines)])
    logits = (ranks / 16).to(dtype)  # no two of a line are equal
    monkeypatch.setattr(READ_ROWS, "machine", None)
    slow = Lines(outputs(logits).top, [range(lines)]).likeliest()
    read: list[int] = []
    monkeypatch.setattr(READ_ROWS, "machine", noting(read))
    found = outputs(logits)
    fast = Lines(found.top, [range(lines)]).likeliest()
    assert read == [lines]
    assert found.lines == lines
    assert np.array_equal(fast[0], slow[0])
    assert fast[0].shape == (lines, TOP)
    assert np.allclose(fast[1], slow[1], atol=1e-4)


def noting(read: list[int]) -> Callable[..., None]:
    """The loop as Python, in place of its machine code."""

    def machine(*arguments: object) -> None:
        READ_ROWS.python(*map(viewed, arguments))
        read.append(len(arguments[-4]))  # type: ignore[arg-type]

    return machine


def test_logits_with_nan_are_read_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.zeros(2, 200)
    logits[1, 5] = torch.nan
    monkeypatch.setattr(READ_ROWS, "machine", noting([]))
    machine = outputs(logits).top
    monkeypatch.setattr(READ_ROWS, "machine", None)
    torch_alone = outputs(logits).top
    assert machine is not None
    assert torch_alone is not None
    assert torch.equal(machine[1], torch_alone[1])
