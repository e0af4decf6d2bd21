"""What one call for all layers computes, as Python and as machine code; whole forwards are in `test_decoder`."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from machinecode import unloaded
from tiny import own_llama
from treetargets import target_of

from lade.core.tree import chain
from lade.target.fused import stack
from lade.target.fused.stack import COMPUTE
from lade.target.model import HFTarget

TOLERANCE = 2e-5


@torch.no_grad()
def test_activation() -> None:
    """Of numbers that are not finite, too."""
    numbers = torch.cat([torch.linspace(-100, 100, 401), torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])])
    up = torch.linspace(-3, 5, len(numbers))
    found = numbers.clone()
    with unloaded(), np.errstate(all="ignore"):
        stack.activate(found.numpy(), up.numpy())
    torch.testing.assert_close(found, torch.nn.functional.silu(numbers) * up, rtol=1e-5, atol=1e-12, equal_nan=True)


def logits(target: HFTarget, tokens: list[int], one_call: bool) -> torch.Tensor:
    assert target.fused is not None
    target.fused.one_call = one_call
    return target.forward([0], [chain(tokens, asked=True, scored=True)]).logits.clone()


@pytest.mark.parametrize("threads", [1, 2, 3])
@settings(max_examples=8)
@given(tokens=st.lists(st.integers(3, 40), min_size=1, max_size=30))
@torch.no_grad()
def test_threads_share_the_work(threads: int, tokens: list[int]) -> None:
    """As machine code; as Python there is one."""
    if not COMPUTE.ready:
        pytest.skip("the loops are not compiled in this run: LADE_COMPILED=1 compiles them")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lade.target.fused.stacked.threads_for", lambda operations: threads)
        patch.setattr(stack, "OPERATIONS", 1)
        target = target_of(own_llama(), (9,), fused=True)
        torch.testing.assert_close(logits(target, tokens, True), logits(target, tokens, False), rtol=0, atol=TOLERANCE)
