"""One packed layer: the products, gradients, copies and checkpoints of the plain one."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from lade.weights import packed as module
from lade.weights.packed import PackedLinear, can_pack, pack, packs, product_of, unpack

DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16, torch.float16) if packs(dtype)]
SHAPES = st.sampled_from([(), (0,), (1,), (7,), (1, 33), (2, 3, 5), (0, 4)])
pytestmark = [
    pytest.mark.skipif(not DTYPES, reason="oneDNN packs no weights on this machine"),
    pytest.mark.usefixtures("small_weights"),
]


def layer(inputs: int = 24, outputs: int = 40, bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(inputs * outputs)
        return nn.Linear(inputs, outputs, bias=bias).to(dtype).eval()


def both(**options: object) -> tuple[nn.Linear, nn.Linear]:
    """A plain layer, and its packed copy."""
    plain = layer(**options)  # type: ignore[arg-type]
    other = copy.deepcopy(plain)
    assert pack(other)
    assert isinstance(other, PackedLinear)
    return plain, other


@given(
    dtype=st.sampled_from(DTYPES),
    shape=SHAPES,
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 70),
    bias=st.booleans(),
    seed=st.integers(0, 9),
)
def test_products_are_those_of_the_plain_layer(
    dtype: torch.dtype, shape: tuple[int, ...], inputs: int, outputs: int, bias: bool, seed: int
) -> None:
    plain, other = both(inputs=inputs, outputs=outputs, bias=bias, dtype=dtype)
    rows = torch.randn(*shape, inputs, generator=torch.Generator().manual_seed(seed)).to(dtype)
    with torch.no_grad():
        assert_close(other(rows), plain(rows))


def test_rows_may_lie_apart_in_memory() -> None:
    plain, other = both()
    rows = torch.randn(24, 9).T[::2]
    with torch.no_grad():
        assert_close(other(rows), plain(rows))


@pytest.mark.parametrize("trained", [True, False])
def test_unpacking_gives_the_plain_layer_back(trained: bool) -> None:
    plain = layer()
    plain.weight.requires_grad_(trained)
    other = copy.deepcopy(plain)
    assert pack(other)
    assert not other.weight.requires_grad
    assert unpack(other)
    assert type(other) is nn.Linear
    assert other.weight.requires_grad == trained
    assert torch.equal(other.weight, plain.weight)
    assert other.__dict__.keys() == plain.__dict__.keys()
    assert not unpack(other)


def test_a_second_time_changes_nothing() -> None:
    _, other = both()
    weight = other.weight
    assert not can_pack(other)
    assert not pack(other)
    assert other.weight is weight


@pytest.mark.parametrize("again", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_are_packed_too(again: Callable[[nn.Linear], nn.Linear]) -> None:
    plain, other = both()
    found = again(other)
    assert type(found) is PackedLinear
    with torch.no_grad():
        assert torch.equal(found(torch.ones(3, 24)), other(torch.ones(3, 24)))
    unpack(found)
    assert torch.equal(found.weight, plain.weight)
    assert found.weight.requires_grad


def test_a_checkpoint_is_that_of_the_plain_layer() -> None:
    plain, other = both()
    found, expected = other.state_dict(), plain.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_checkpoint_is_loaded_and_packed() -> None:
    _, other = both()
    new = {"weight": torch.randn(40, 24), "bias": torch.randn(40)}
    other.load_state_dict(new)
    assert type(other) is PackedLinear
    with torch.no_grad():
        assert_close(other(torch.eye(24)), (new["weight"] + new["bias"][:, None]).T)


def test_casting_packs_anew_or_unpacks() -> None:
    plain, other = both()
    assert type(other.double()) is nn.Linear
    assert other.weight.dtype is torch.float64
    assert pack(other.float())
    if torch.bfloat16 in DTYPES:
        assert type(other.bfloat16()) is PackedLinear
        with torch.no_grad():
            assert_close(other(torch.ones(2, 24).bfloat16()), plain.bfloat16()(torch.ones(2, 24).bfloat16()))


def test_gradients_of_what_stands_before_it() -> None:
    plain, other = both()
    rows = torch.randn(3, 24)
    gradients = []
    for each in (plain, other):
        leaf = rows.clone().requires_grad_()
        each(leaf).square().sum().backward()
        gradients.append(leaf.grad)
    assert_close(gradients[1], gradients[0])


def test_training_is_refused() -> None:
    _, other = both()
    with pytest.raises(RuntimeError, match=r"must be plain for training \(lade.unpack_weights\)"):
        other.train()(torch.ones(1, 24))
    with torch.no_grad():
        other(torch.ones(1, 24))


def test_autocast_is_followed() -> None:
    plain, other = both()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, expected = other(torch.ones(2, 24)), plain(torch.ones(2, 24))
    assert found.dtype is expected.dtype is torch.bfloat16
    assert torch.equal(found, expected)


def test_an_input_of_another_dtype_is_refused_as_by_the_plain_layer() -> None:
    plain, other = both()
    for each in (plain, other):
        with pytest.raises(RuntimeError, match="same dtype"):
            each(torch.ones(2, 24, dtype=torch.float64))


def test_a_tied_weight_stays_tied() -> None:
    table, head = nn.Embedding(40, 24), layer()
    head.weight = table.weight
    assert pack(head, tied=True)
    with torch.no_grad():
        table.weight.mul_(2)
        assert_close(head(torch.eye(24)), (table.weight + head.bias[:, None]).T)  # what is packed is of no use now
    assert torch.equal(head.state_dict()["weight"], table.weight)
    unpack(head)
    assert head.weight is table.weight


def test_the_product_of_a_tied_weight_is_that_of_one_moment() -> None:
    """As somebody may write to the other module's weight."""
    table, head = nn.Embedding(40, 24), layer()
    head.weight = table.weight
    assert pack(head, tied=True)
    product = product_of(head, now=True)
    assert product is not None
    assert_close(product(torch.eye(24)), head(torch.eye(24)))
    assert product_of(head) is None
    with torch.no_grad():
        table.weight.mul_(2)
    assert product_of(head, now=True) is None


def test_a_weight_that_somebody_sets_is_used() -> None:
    _, other = both()
    other.weight = nn.Parameter(torch.zeros(40, 24))
    with torch.no_grad():
        assert torch.equal(other(torch.ones(24)), other.bias)
    unpack(other)
    assert not other.weight.any()


def test_some_layers_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(nn.Linear):
        """Might compute anything."""

    patched = layer()
    monkeypatch.setattr(patched, "forward", patched.forward)
    empty = layer()
    empty.weight = nn.Parameter(torch.zeros(40, 0))
    for each in (Own(3, 3), patched, empty, layer().double(), layer().to("meta"), nn.Embedding(3, 3)):
        assert not can_pack(each)
        assert not pack(each)


def test_small_weights_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST", {torch.float32: 24 * 40 + 1})
    assert not can_pack(layer())
    assert can_pack(layer(outputs=41))


def test_nothing_is_packed_where_products_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = layer()
    real = module.product
    monkeypatch.setattr(module, "product", lambda *given: real(*given) * 1.01)
    weight = plain.weight
    assert not pack(plain)
    assert type(plain) is nn.Linear
    assert plain.weight is weight


def test_hooks_run() -> None:
    plain, seen = layer(), []
    plain.register_forward_hook(lambda *given: seen.append(given))
    assert pack(plain)
    plain(torch.ones(24))
    assert len(seen) == 1
