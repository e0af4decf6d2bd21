"""The kernels between a layer's products, in Triton's interpreter, beside the operations of transformers' LLaMA."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.functional import silu
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from lade.kernels import between

interpreted = pytest.importorskip("interpreted", reason="needs triton", exc_type=ImportError)
if not interpreted.chosen():
    pytest.skip("needs Triton's interpreter: no CUDA device", allow_module_level=True)

HALVES = st.sampled_from(between.HALVES)
RARE = 0.01  # share of numbers that a sum or an exponential in another order may round otherwise


@pytest.fixture(autouse=True, scope="module")
def _fast():
    interpreted.hasten()


def close(found, expected):
    """Equal, but for numbers that are rounded to a neighbour."""
    assert found.dtype is expected.dtype
    torch.testing.assert_close(found, expected, rtol=2 * torch.finfo(found.dtype).eps, atol=0)
    assert (found != expected).float().mean() < RARE


@settings(max_examples=8)
@given(dtype=HALVES, lines=st.integers(1, 5), size=st.integers(1, 300), seed=st.integers(0, 99))
def test_norms(dtype, lines, size, seed):
    torch.manual_seed(seed)
    norm = LlamaRMSNorm(size, eps=1e-5)
    norm.weight.data = torch.randn(size).to(dtype)
    states = (3 * torch.randn(1, lines, size)).to(dtype)
    assert between.norm_fits(states, norm.weight)
    close(between.rms_norm(states, norm.weight.detach(), 1e-5), norm(states).detach())
    residual = torch.randn_like(states)
    sums, found = between.added_norm(states, residual, norm.weight.detach(), 1e-5)
    assert torch.equal(sums, states + residual)
    close(found, norm(states + residual).detach())


def turned(dtype, tokens, heads, size):
    """Queries or keys as attention modules have them: heads are not the outer axis in memory."""
    return torch.randn(1, tokens, heads, size).to(dtype).transpose(1, 2)


@settings(max_examples=8)
@given(
    dtype=HALVES, tokens=st.integers(1, 5), groups=st.integers(1, 3), shared=st.integers(1, 3),
    half=st.integers(1, 20), seed=st.integers(0, 99),
)  # fmt: skip
def test_rotary_positions_are_the_same(dtype, tokens, groups, shared, half, seed):
    torch.manual_seed(seed)
    query, key = turned(dtype, tokens, groups * shared, 2 * half), turned(dtype, tokens, shared, 2 * half)
    cos, sin = torch.rand(2, 1, tokens, 2 * half).to(dtype)  # with halves that differ
    assert between.rotation_fits(query, key, cos, sin)
    for found, expected in zip(
        between.rotate(query, key, cos, sin), apply_rotary_pos_emb(query, key, cos, sin), strict=True
    ):
        assert torch.equal(found, expected)


@settings(max_examples=8)
@given(dtype=HALVES, count=st.integers(1, 3000), seed=st.integers(0, 99))
def test_gates(dtype, count, seed):
    torch.manual_seed(seed)
    gates, values = (4 * torch.randn(2, 1, count)).to(dtype)
    assert between.gates_fit(gates, values)
    close(between.gated(gates, values), silu(gates) * values)


@settings(max_examples=8)
@given(dtype=st.sampled_from([*between.HALVES, torch.float32]), heads=st.integers(1, 5), data=st.data())
def test_keys_and_values_are_stored_at_their_places(dtype, heads, data):
    size, places = data.draw(st.integers(1, 20)), data.draw(st.lists(st.integers(0, 9), min_size=1, unique=True))
    both = torch.randn(6, heads, 10, size).to(dtype)[2:4]  # two of a stack
    key, value = turned(dtype, len(places), heads, size), turned(dtype, len(places), heads, size)
    expected = both.clone().index_copy_(2, torch.tensor(places), torch.cat([key, value]))
    assert between.store_fits(both, key, value)
    between.store(both, torch.tensor(places), key, value)
    assert torch.equal(both, expected)


@settings(max_examples=12)
@example(paths=[[False, True] * 20, [False, *[True] * 39]], held=1)  # more tokens than are moved at once
@given(paths=st.lists(st.lists(st.booleans(), min_size=1, max_size=40), min_size=1, max_size=2), held=st.integers(0, 3))
def test_accepted_paths_are_moved_behind_their_texts(paths, held):
    """Of two slots of 50 tokens each and a spare one: nodes on a path go to the first free places."""
    sources, goals = list[int](), list[int]()
    for slot, path in enumerate(paths):
        first = 50 * slot + held
        sources += range(first, first + len(path))
        kept = [node for node, accepted in enumerate(path) if accepted]
        goals += [first + kept.index(node) if node in kept else 100 + node for node in range(len(path))]
    states = torch.randn(2, 3, 150, 5)
    expected = states.clone()
    for source, goal in zip(sources, goals, strict=True):
        if goal < 100:
            expected[:, :, goal] = states[:, :, source]
    between.move(states, torch.tensor(sources), torch.tensor(goals), 100)
    assert torch.equal(states, expected)


def test_what_does_not_fit():
    half, single = torch.ones(1, 2, 8, dtype=torch.float16), torch.ones(1, 2, 8)
    assert not between.norm_fits(single, single[0, 0]), "float32 is judged by identity"
    assert not between.norm_fits(half, single[0, 0]), "the result would be float32"
    assert not between.norm_fits(half.mT, half[0, :, 0]), "lines are not side by side"
    assert between.added_norm_fits(half, half, half[0, 0])
    assert not between.added_norm_fits(half, half.mT.contiguous().mT, half[0, 0]), "the residual's are not"
    assert not between.added_norm_fits(half, half[:, :1], half[0, 0]), "one residual for all lines"
    assert not between.gates_fit(half, single)
    assert not between.gates_fit(half, half[:, :1])
    query, angles = half[:, None], half
    assert between.rotation_fits(query, query, angles, angles)
    assert not between.rotation_fits(query, query, angles[:, :1], angles), "one angle for all tokens"
    assert not between.rotation_fits(query, query, angles[..., :4], angles[..., :4]), "a part of each head"
    assert not between.rotation_fits(torch.cat([query] * 2), torch.cat([query] * 2), angles, angles), "two rows"
    assert not between.store_fits(single[None], query, query)
