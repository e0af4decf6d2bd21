"""Linear layers of few tokens: the loops where they are faster, else PyTorch; with the weight as it is now."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from bitnumbers import tensor_of
from inblocks import own_blocks
from torch import nn
from torch.nn.functional import linear as torch_linear

from lade.base.bits import bits_of
from lade.target.fused import linear
from lade.target.fused.linear import TOKENS, FewBlocks, FewTokens, are_faster
from lade.target.fused.products import MULTIPLY, UNIT
from lade.weights import packed
from lade.weights.blockloops import MULTIPLY_BLOCKS
from lade.weights.blocks import lines_of
from lade.weights.packed import pack, packs, product_of

SIZE, LINES = 8, 6


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The loops are there, as numpy; tokens of each product that they compute."""
    found: list[int] = []

    def multiply(fork: int, threads: int, counters: Any, states: Any, tokens: int, weight: Any, out: Any) -> None:
        found.append(tokens)
        out[:] = (states.reshape(tokens, -1) @ weight.reshape(-1, len(states) // tokens).T).ravel()

    monkeypatch.setattr(MULTIPLY, "machine", multiply)
    return found


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are faster for two to four tokens."""
    monkeypatch.setattr(linear, "are_faster", lambda tokens, lines, size: 2 <= tokens <= 4)


def layer(bias: bool = False) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(SIZE, LINES, bias=bias)


def states(tokens: int) -> torch.Tensor:
    return torch.randn(1, tokens, SIZE, generator=torch.Generator().manual_seed(tokens))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_products_of_a_layer(bias: bool, calls: list[int]) -> None:
    own, few_tokens = layer(bias), FewTokens.of(layer(bias))
    assert few_tokens is not None
    for tokens in (0, 1, 2, 4, 5):
        found = few_tokens(states(tokens))
        torch.testing.assert_close(found, own(states(tokens)))
        assert found.shape == (1, tokens, LINES)
    assert calls == [2, 4]
    assert torch.equal(few_tokens(states(1)), own(states(1)))


@pytest.mark.usefixtures("few")
@torch.no_grad()
def test_a_weight_that_changes(calls: list[int]) -> None:
    """In place, or by another memory behind the same parameter."""
    own = layer()
    few_tokens = FewTokens.of(own)
    assert few_tokens is not None
    few_tokens(states(2))
    own.weight.mul_(2)
    torch.testing.assert_close(few_tokens(states(2)), own(states(2)))
    own.weight.data = torch.randn(LINES, SIZE)
    torch.testing.assert_close(few_tokens(states(2)), own(states(2)))
    assert calls == [2, 2, 2]


@pytest.mark.usefixtures("few", "as_python")
@torch.no_grad()
def test_without_machine_code_pytorch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "multiplied", None)
    few_tokens = FewTokens.of(layer())
    assert few_tokens is not None
    assert torch.equal(few_tokens(states(3)), layer()(states(3)))


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Weights of any size are packed; the loops of blocks are there, as numpy, and faster for two to four tokens."""
    found: list[int] = []

    def multiply(*given: Any) -> None:
        _, _, _, states, tokens, weight, bias, short, _, bits = given
        found.append(tokens)
        lines = torch.from_numpy(lines_of(weight, LINES, SIZE).view(np.int16).copy()).view(torch.bfloat16).float()
        own = tensor_of(states).float().view(tokens, SIZE) @ lines.T
        products = own + (tensor_of(bias).float() if len(bias) else 0)
        bits[:] = bits_of(products.bfloat16() if short else products)

    monkeypatch.setattr(packed, "LEAST", dict.fromkeys(packed.LEAST, 1))
    monkeypatch.setattr(linear, "are_faster", lambda tokens, lines, size, in_blocks: in_blocks and 2 <= tokens <= 4)
    monkeypatch.setattr(MULTIPLY_BLOCKS, "machine", multiply)
    return found


@pytest.fixture
def blocks(loops: list[int]) -> list[int]:
    """The same, where oneDNN lays weights in blocks."""
    if not packs(torch.bfloat16):
        pytest.skip("oneDNN packs no bfloat16 on this machine")
    return loops


def packed_layer(bias: bool = False) -> nn.Linear:
    found = layer(bias).bfloat16()
    assert pack(found)
    return found


@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_products_of_a_packed_layer(bias: bool, blocks: list[int]) -> None:
    own = packed_layer(bias)
    few_blocks = FewBlocks.of(product_of(own))
    assert few_blocks is not None
    for tokens in (0, 1, 2, 4, 5):
        given = states(tokens).bfloat16()
        torch.testing.assert_close(few_blocks(given), own(given), rtol=2**-7, atol=1e-3)
        assert few_blocks(given).dtype is torch.bfloat16
    assert blocks == [2, 2, 4, 4]


@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_products_of_a_float32_layer_in_16_bits(bias: bool, blocks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops compute them all, but for very many tokens: torch has no such product to be faster."""
    plain = layer(bias)
    plain.weight.data = plain.weight.data.bfloat16().float()
    own = copy.deepcopy(plain)
    assert pack(own, short=True)
    few_blocks = FewBlocks.of(product_of(own))
    assert few_blocks is not None
    blocks.clear()  # of what packing tried
    monkeypatch.setattr(packed, "MOST_LOOPED", 100)
    monkeypatch.setattr(linear, "are_faster", None)
    for tokens in (0, 1, 5, TOKENS[-1], 100, 101):
        found = few_blocks(states(tokens))
        torch.testing.assert_close(found, plain(states(tokens)), rtol=1e-5, atol=1e-5)
        assert found.shape == (1, tokens, LINES)
    assert blocks == [1, 5, TOKENS[-1], 100]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_products_of_a_layer_that_lade_lays_in_blocks(
    bias: bool, dtype: torch.dtype, loops: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loops compute them all: torch is slow in bfloat16, and would make a float32 weight of 16 bits first."""
    plain = layer(bias).bfloat16().to(dtype)
    own = copy.deepcopy(plain)
    with own_blocks():
        assert pack(own, short=True)
    few_blocks = FewBlocks.of(product_of(own))
    assert few_blocks is not None
    loops.clear()  # of what packing tried
    monkeypatch.setattr(linear, "are_faster", None)
    for tokens in (0, 1, 5, packed.MOST_LOOPED + 1):
        found, expected = few_blocks(states(tokens).to(dtype)), plain(states(tokens).to(dtype))
        torch.testing.assert_close(found, expected, **({} if dtype is torch.float32 else {"rtol": 2**-7, "atol": 1e-3}))
        assert found.dtype is dtype
    assert loops == [1, 5, packed.MOST_LOOPED + 1]


@pytest.mark.usefixtures("blocks")
def test_what_becomes_of_a_packed_parameter_frees_no_memory_that_is_read() -> None:
    own = packed_layer()
    few_blocks = FewBlocks.of(product_of(own))
    assert few_blocks is not None
    before = few_blocks.blocks.copy()
    own.weight.data = packed.packed(torch.zeros(LINES, SIZE).bfloat16())
    for _ in range(8):  # what would lie there now
        packed.packed(torch.zeros(LINES, SIZE).bfloat16())
    assert (few_blocks.blocks == before).all()


@pytest.mark.usefixtures("blocks")
def test_other_packed_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose weight lies in another way, or is float32; and products of plain layers."""
    assert FewBlocks.of(product_of(layer())) is None
    assert FewBlocks.of(None) is None
    single = layer()
    assert pack(single)
    assert FewBlocks.of(product_of(single)) is None
    monkeypatch.setattr(linear, "blocks_of", lambda weight: None)
    assert FewBlocks.of(product_of(packed_layer())) is None


class Own(nn.Linear):
    """A user's layer."""


def quantised() -> nn.Linear:
    found = layer()

    class Weight(nn.Parameter):
        """Of another library."""

    found.weight = Weight(found.weight.detach())
    return found


def spread_out() -> nn.Linear:
    found = layer()
    found.weight = nn.Parameter(torch.randn(SIZE, LINES).T)
    return found


def empty() -> nn.Linear:
    found = layer()
    found.weight = nn.Parameter(torch.empty(0, SIZE))
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda: Own(SIZE, LINES),
        quantised,
        spread_out,
        lambda: layer().bfloat16(),
        lambda: layer().double(),
        lambda: layer().to("meta"),
        empty,
        lambda: nn.SiLU(),
    ],
)
def test_other_layers(make: Callable[[], Any]) -> None:
    assert FewTokens.of(make()) is None


@pytest.fixture
def took(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds of a product by the loops and by PyTorch, for each token."""
    seconds = {"loops": 1.0, "torch": 1.0, "begin": 0.0}
    now = [0.0]

    def own(states: torch.Tensor, weight: np.ndarray, lines: int) -> None:
        now[0] += seconds["begin"] + seconds["loops"] * states.shape[1]

    def own_blocks(states: torch.Tensor, blocks: np.ndarray, lines: int) -> None:
        assert states.dtype is torch.bfloat16
        assert (tensor_of(blocks) == 1).all()  # products of numbers that are nearly 0 would take many times as long
        own(states, blocks, lines)

    def other(states: torch.Tensor, weight: torch.Tensor) -> None:
        now[0] += seconds["torch"] * states.shape[1]

    monkeypatch.setattr(linear, "multiplied", own)
    monkeypatch.setattr(linear, "linear", other)
    monkeypatch.setattr(linear, "multiplied_by_blocks", own_blocks)
    monkeypatch.setattr(linear.PackedProduct, "__call__", lambda product, states: other(states, product.weight))
    monkeypatch.setattr(linear.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(linear, "SECONDS", math.inf)
    linear._comparison.cache_clear()
    return seconds


def faster(numbers: Sequence[int]) -> list[int]:
    found = [tokens for tokens in numbers if are_faster(tokens, LINES, SIZE)]
    linear._comparison.cache_clear()
    return found


def test_which_is_faster(took: dict[str, float]) -> None:
    """By times of the next larger number that is measured."""
    numbers = range(1, 100)
    assert faster(numbers) == []
    took["loops"] = 0.5
    assert faster(numbers) == [*range(1, TOKENS[-1] + 1)]
    took["begin"] = 5.0
    assert faster(numbers) == [*range(9, TOKENS[-1] + 1)]
    took |= {"begin": 0.0, "loops": 0.97}
    assert faster(numbers) == []


@pytest.mark.skipif(not packs(torch.bfloat16), reason="oneDNN packs no bfloat16 on this machine")
def test_which_is_faster_with_a_packed_weight(took: dict[str, float]) -> None:
    """It is measured apart from the plain one; where they are alike, the loops."""
    assert are_faster(1, LINES, SIZE, in_blocks=True)
    took["loops"] = 1.1
    assert not are_faster(1, LINES + 2, SIZE, in_blocks=True)
    took["loops"] = 0.5
    assert faster([1, TOKENS[-1]]) == [1, TOKENS[-1]]
    assert are_faster(1, LINES, SIZE, in_blocks=True)
    took |= {"loops": 2.0}
    assert are_faster(1, LINES, SIZE, in_blocks=True)
    assert not are_faster(1, LINES, SIZE)
    assert not are_faster(1, LINES + 1, SIZE, in_blocks=True)
    linear._comparison.cache_clear()


def test_a_busy_machine_is_not_waited_for(took: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not measured in time is as for fewer tokens, or PyTorch's."""
    took["loops"] = 0.5
    monkeypatch.setattr(linear, "CACHED", 1)  # one weight
    whole = (1 + linear.ROUNDS) * 1.5  # of both ways, per token
    monkeypatch.setattr(linear, "SECONDS", whole * (1 + 2))
    assert faster([1, 2, 3, TOKENS[-1]]) == [1, 2, 3, TOKENS[-1]]
    monkeypatch.setattr(linear, "SECONDS", whole - 1)
    assert faster([1, 2, 3, TOKENS[-1]]) == []
    took |= {"begin": 1.0, "loops": 0.6}  # faster from three tokens on, of which no time is taken
    monkeypatch.setattr(linear, "SECONDS", (1 + linear.ROUNDS) * (2.6 + 4.2))
    assert faster([1, 2, 3, TOKENS[-1]]) == []


def test_it_is_measured_once_for_a_shape(took: dict[str, float]) -> None:
    took["loops"] = 0.5
    assert are_faster(3, LINES, SIZE)
    took["loops"] = 2.0
    assert are_faster(4, LINES, SIZE)
    assert not are_faster(4, LINES, SIZE + 1)
    linear._comparison.cache_clear()


@pytest.mark.parametrize(("cached", "weights"), [(1, 1), (3, 3), (100, 5)])
def test_weights_are_read_in_turn(cached: int, weights: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that none lies in a core's caches; of tiny ones, not all that these hold."""
    places = list[int]()

    def noted(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        places.append(weight.data_ptr())
        return torch_linear(states, weight)

    monkeypatch.setattr(linear, "TOKENS", (1,))
    monkeypatch.setattr(linear, "CACHED", (cached - 1) * LINES * SIZE * 4 + 1)
    monkeypatch.setattr(linear, "MOST", 5)
    monkeypatch.setattr(linear, "linear", noted)
    linear._comparison(LINES, SIZE, False, 1)
    linear._comparison.cache_clear()
    assert len(set(places)) == weights
    assert places == places[:weights] * (1 + linear.ROUNDS)


def test_a_large_weight_is_not_measured_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = list[tuple[int, ...]]()

    def noted(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(weight.shape))
        return torch_linear(states, weight)

    monkeypatch.setattr(linear, "ELEMENTS", 1 << 10)
    monkeypatch.setattr(linear, "TOKENS", (1,))
    monkeypatch.setattr(linear, "ROUNDS", 1)
    monkeypatch.setattr(linear, "linear", noted)
    linear._comparison(1000, 8, False, 1)
    linear._comparison(1000, 1 << 9, False, 1)
    linear._comparison.cache_clear()
    assert {*shapes} == {(128, 8), (UNIT, 1 << 9)}
