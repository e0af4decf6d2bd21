"""The loops between the products against transformers' operations, as Python and as machine code."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from machinecode import unloaded
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from lade.base.bits import DTYPES, bits_of, number, rounded
from lade.target.folding import fold
from lade.target.fused.loops import NORMALISE, ROTATE, Heads

ULP = {torch.float32: 2**-23, torch.bfloat16: 2**-8}


def random_states(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture(params=[False, True], ids=["python", "machine"])
def loops(request: pytest.FixtureRequest) -> object:
    if request.param:
        if not (NORMALISE.ready and ROTATE.ready):
            pytest.skip("the loops are not compiled in this run: LADE_COMPILED=1 compiles them")
        yield
    else:
        with unloaded():
            yield


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 5, 64, 100])
@pytest.mark.parametrize("adds", [False, True])
def test_norms(size: int, adds: bool, dtype: torch.dtype) -> None:
    states, added = (random_states(1, 3, size, dtype=dtype, seed=seed) * 3 for seed in (1, 2))
    norm = LlamaRMSNorm(size, 1e-3).to(dtype)
    norm.weight.data = random_states(size, dtype=dtype, seed=3)
    total = states + added if adds else states.clone()
    found = torch.empty_like(states)
    NORMALISE(
        *(bits_of(states), bits_of(added)[: added.numel() * adds], bits_of(norm.weight.detach()), np.float32(1e-3)),
        *(dtype is torch.bfloat16, np.empty(size, np.float32), bits_of(found)),
    )
    assert torch.equal(states, total)
    torch.testing.assert_close(found, norm(total).detach(), rtol=4 * ULP[dtype], atol=1e-30)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=20)
@given(
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    stored=st.integers(1, 3),
    group=st.integers(1, 3),
    half=st.integers(1, 4),
    folds=st.booleans(),
    data=st.data(),
)
def test_rotations_and_places(
    dtype: torch.dtype, rows: list[int], stored: int, group: int, half: int, folds: bool, data: st.DataObject
) -> None:
    """The same bits as transformers' rotation; queries of each row are folded, keys and values lie in their places."""
    tokens, size, total = sum(rows), 2 * half, 20
    query, key, value = (
        random_states(1, tokens, heads * size, dtype=dtype, seed=heads) for heads in (stored * group, stored, stored)
    )
    angles = torch.rand(1, tokens, half) * 6
    cosines, sines = angles.cos().to(dtype), angles.sin().to(dtype)
    places = data.draw(st.lists(st.integers(0, total - 1), min_size=tokens, max_size=tokens, unique=True))
    keys, values = (torch.zeros(1, stored, total, size, dtype=dtype) for _ in range(2))
    folded = torch.empty(tokens * stored * group * size, dtype=dtype)
    ends, heads = (np.cumsum(rows), stored) if folds else (np.array([tokens]), stored * group)
    ROTATE(
        *map(bits_of, (query, key, value, cosines, sines)),
        *(np.array(places), ends, Heads(heads, stored, size), dtype is torch.bfloat16),
        *map(bits_of, (folded, keys, values)),
    )
    parts = [states.view(1, tokens, -1, size).transpose(1, 2) for states in (query, key, value)]
    turned, stored_keys = apply_rotary_pos_emb(*parts[:2], *(torch.cat([each, each], -1) for each in (cosines, sines)))
    expected = [fold(part, group if folds else 1) for part in turned.split(rows if folds else [tokens], 2)]
    assert torch.equal(folded, torch.cat([part.flatten() for part in expected]))
    for buffer, states in ((keys, stored_keys), (values, parts[2])):
        assert torch.equal(buffer[:, :, places], states)
        assert not buffer[:, :, sorted({*range(total)} - {*places})].any()


@given(st.floats(width=32, allow_nan=False))
def test_rounding_is_torchs(value: float) -> None:
    bits = torch.tensor(value).to(torch.bfloat16).view(torch.int16).item() & 0xFFFF
    assert int(rounded(np.float32(value), True)) == bits
    assert float(number(bits, True)) == torch.tensor(value).to(torch.bfloat16).item()
    assert float(number(rounded(np.float32(value), False), False)) == np.float32(value)
