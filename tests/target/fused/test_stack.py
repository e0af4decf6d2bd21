"""What one call for all layers computes, as Python and as machine code; whole forwards are in `test_decoder`."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from machinecode import unloaded
from tiny import own_llama
from treetargets import only_loops, target_of

from lade.base.bits import DTYPES, bits_of
from lade.core.tree import chain
from lade.target.fused import layerproducts
from lade.target.fused.layerarrays import ELEMENTS, PLAIN, SHORT
from lade.target.fused.stack import COMPUTE
from lade.target.model import HFTarget
from lade.weights.packing import pack_weights

TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 0.0}  # PyTorch computes a float32 activation by other code
KINDS = pytest.mark.parametrize("kind", ELEMENTS, ids=["plain", "mixed", "short"])


def llama_of(kind: str) -> Any:
    """With weights that the call reads."""
    model = own_llama()
    if kind == PLAIN:
        return model
    model.bfloat16()  # the numbers of a mixed one's weights, too
    assert pack_weights(model if kind == SHORT else model.float(), short=True)
    return model


@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_activation(dtype: torch.dtype) -> None:
    """Of numbers that are not finite, too; in bfloat16 it is rounded where torch's two operations round."""
    ends = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])
    numbers = torch.cat([torch.linspace(-100, 100, 401), ends]).to(dtype)
    up = torch.linspace(-3, 5, len(numbers)).to(dtype)
    found = numbers.clone()
    with unloaded(), np.errstate(all="ignore"):
        layerproducts.activate(bits_of(found), bits_of(up))
    expected, rtol = torch.nn.functional.silu(numbers) * up, 0 if dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-12, equal_nan=True)


def logits(target: HFTarget, tokens: list[int], one_call: bool) -> torch.Tensor:
    assert target.fused is not None
    target.fused.one_call = one_call
    return target.forward([0], [chain(tokens, asked=True, scored=True)]).logits.clone()


@pytest.mark.parametrize("threads", [1, 2, 3])
@KINDS
@pytest.mark.usefixtures("small_weights")
@settings(max_examples=8)
@given(tokens=st.lists(st.integers(3, 40), min_size=1, max_size=30))
@torch.no_grad()
def test_threads_share_the_work(kind: str, threads: int, tokens: list[int]) -> None:
    """As machine code; as Python there is one. Attention and products are the loops' in both, whatever is faster."""
    if not COMPUTE.ready:
        pytest.skip("the loops are not compiled in this run: LADE_COMPILED=1 compiles them")
    model = llama_of(kind)
    with pytest.MonkeyPatch.context() as patch:
        only_loops(patch)
        patch.setattr("lade.target.fused.stacked.threads_for", lambda operations: threads)
        patch.setattr(layerproducts, "OPERATIONS", 1)
        target = target_of(model, (9,), fused=True)
        assert target.fused is not None
        assert target.fused.stack is not None
        assert target.fused.stack.kind == kind
        one, other = logits(target, tokens, True), logits(target, tokens, False)
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCES[model.dtype])
