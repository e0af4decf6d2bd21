"""One packed layer: the products, gradients, copies and checkpoints of the plain one."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from inblocks import OWN
from machinecode import unloaded
from torch import nn
from torch.testing import assert_close

from lade.base.compiled import viewed
from lade.weights import packed as module
from lade.weights.blockloops import MULTIPLY_BLOCKS
from lade.weights.blocks import laid_in_blocks
from lade.weights.packed import PackedLinear, can_pack, dtype_of, lies_short, pack, packs, product_of, unpack

DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16, torch.float16) if packs(dtype)]
SHAPES = st.sampled_from([(), (0,), (1,), (7,), (1, 33), (2, 3, 5), (0, 4)])
pytestmark = [
    pytest.mark.skipif(not DTYPES, reason="oneDNN packs no weights on this machine"),
    pytest.mark.usefixtures("layout", "small_weights"),
]
EACH = pytest.mark.parametrize("short", [False, True], ids=["own", "short"])


def layer(inputs: int = 24, outputs: int = 40, bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(inputs * outputs)
        return nn.Linear(inputs, outputs, bias=bias).to(dtype).eval()


def exact(**options: object) -> nn.Linear:
    """A float32 layer, the numbers of whose weight are bfloat16's."""
    found = layer(**options)  # type: ignore[arg-type]
    found.weight.data = found.weight.data.bfloat16().float()
    return found


def both(short: bool = False, **options: object) -> tuple[nn.Linear, nn.Linear]:
    """A plain layer, and its packed copy: in 16 bits, if that is short."""
    plain = exact(**options) if short else layer(**options)  # type: ignore[arg-type]
    other = copy.deepcopy(plain)
    assert pack(other, short=short)
    assert isinstance(other, PackedLinear)
    assert lies_short(other) == short
    return plain, other


@pytest.fixture
def looped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Loops multiply weights in 16 bits, as Python where they are not compiled; the states of each product."""
    found, own = list[int](), module.multiplied_by_blocks

    def multiply(states: torch.Tensor, *given: Any) -> torch.Tensor:
        found.append(states.numel() // states.shape[-1])
        return own(states, *given)

    monkeypatch.setattr(module, "multiplied_by_blocks", multiply)
    if not MULTIPLY_BLOCKS.ready:
        monkeypatch.setattr(MULTIPLY_BLOCKS, "machine", lambda *given: MULTIPLY_BLOCKS.python(*map(viewed, given)))
    return found


@pytest.fixture(params=[False, True], ids=["torch", "loops"])
def either_way(request: pytest.FixtureRequest) -> object:
    """What multiplies weights in 16 bits."""
    if request.param:
        request.getfixturevalue("looped")
        yield
    else:
        with unloaded():
            yield


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
    assume(module.packs(dtype))
    plain, other = both(inputs=inputs, outputs=outputs, bias=bias, dtype=dtype)
    rows = torch.randn(*shape, inputs, generator=torch.Generator().manual_seed(seed)).to(dtype)
    with torch.no_grad():
        assert_close(other(rows), plain(rows))


@pytest.mark.usefixtures("either_way")
@settings(max_examples=20)
@given(shape=SHAPES, half=st.integers(1, 35), outputs=st.integers(1, 70), bias=st.booleans(), seed=st.integers(0, 9))
def test_products_of_a_weight_in_16_bits(
    shape: tuple[int, ...], half: int, outputs: int, bias: bool, seed: int
) -> None:
    """Nothing is rounded but the sums."""
    plain, other = both(short=True, inputs=2 * half, outputs=outputs, bias=bias)
    rows = torch.randn(*shape, 2 * half, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        assert_close(other(rows), plain(rows), rtol=1e-5, atol=1e-5)


def test_loops_multiply_few_states(looped: list[int], layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more, torch does where oneDNN packs the weight, and of none."""
    plain, other = both(short=True)
    looped.clear()  # of what packing tried
    monkeypatch.setattr(module, "MOST_LOOPED", 6)
    with torch.no_grad():
        for shape in ((), (1,), (0,), (2, 3), (7,), (2, 4), (2, 0)):
            rows = torch.randn(*shape, 24, generator=torch.Generator().manual_seed(0))
            assert_close(other(rows), plain(rows), rtol=1e-5, atol=1e-5)
            assert other(rows).shape == plain(rows).shape
    assert looped == [1, 1, 1, 1, 6, 6, *([7, 7, 8, 8] if layout == OWN else [])]


@pytest.mark.usefixtures("either_way")
def test_a_bias_of_another_dtype_is_refused_as_by_the_plain_layer() -> None:
    """Not read as if it were float32."""
    for each in both(short=True):
        each.bias = nn.Parameter(each.bias.detach().bfloat16())
        with torch.no_grad(), pytest.raises(RuntimeError, match="same dtype"):
            each(torch.ones(2, 24))


def test_which_weights_are_packed_in_16_bits(layout: str) -> None:
    """Float32 ones whose numbers are bfloat16's, where that is asked for; bfloat16 ones that oneDNN does not pack."""
    for change, short in ((0.0, True), (2.0**-9, False), (torch.nan, None), (torch.inf, None)):
        given = exact()
        given.weight.data[3, 4] = 1 + change
        assert pack(given, short=True) == (short is not None)
        assert lies_short(given) == bool(short)
    asked, half, odd = exact(), exact().bfloat16(), exact(inputs=23)
    assert pack(asked)
    assert pack(half, short=True)
    assert pack(odd, short=True)  # loops read two numbers of a line at a time
    assert lies_short(half) == (layout == OWN)
    assert not any(map(lies_short, (asked, odd, layer())))


@pytest.mark.parametrize("numbers", [24 * 40, 24 * 40 + 1])
def test_a_weight_that_does_not_lie_in_blocks(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is packed as other float32 weights are: not where it is small."""
    monkeypatch.setattr(module, "laid_in_blocks", lambda weight: None)
    monkeypatch.setattr(module, "LEAST", {torch.float32: numbers})
    given, small = exact(), numbers > 24 * 40
    assert pack(given, short=True) != small
    assert type(given) is (nn.Linear if small else PackedLinear)
    assert not lies_short(given)
    with torch.no_grad():
        assert_close(given(torch.eye(24)), exact()(torch.eye(24)))


def test_small_weights_are_packed_in_16_bits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST", {torch.float32: 1 << 20})
    for each, short in ((exact(), True), (exact(inputs=23), False), (layer(), False)):
        assert not can_pack(each)
        assert can_pack(each, short=True) == short
        assert pack(each, short=True) == lies_short(each) == short


def test_states_of_a_weight_in_16_bits_are_float32() -> None:
    plain, other = both(short=True)
    assert other.weight.dtype is torch.bfloat16
    assert dtype_of(other) is dtype_of(plain) is torch.float32


def test_the_product_of_a_weight_in_16_bits(looped: list[int]) -> None:
    plain, other = both(short=True)
    product = product_of(other)
    assert product is not None
    with torch.no_grad():
        assert_close(product(torch.eye(24)), plain(torch.eye(24)), rtol=1e-5, atol=1e-5)
    assert looped[-1] == 24


def test_what_becomes_of_a_parameter_in_16_bits_frees_no_memory_that_is_read() -> None:
    _, other = both(short=True)
    blocks = getattr(other.weight, module.BLOCKS)
    before = blocks.copy()
    other.weight.data = laid_in_blocks(torch.zeros(40, 24).bfloat16())
    others = [laid_in_blocks(torch.zeros(40, 24).bfloat16()) for _ in range(8)]  # what would lie there now
    assert others
    assert (blocks == before).all()


@EACH
@pytest.mark.usefixtures("either_way")
def test_rows_may_lie_apart_in_memory(short: bool) -> None:
    plain, other = both(short)
    rows = torch.randn(24, 9).T[::2]
    with torch.no_grad():
        assert_close(other(rows), plain(rows))


@EACH
@pytest.mark.parametrize("trained", [True, False])
def test_unpacking_gives_the_plain_layer_back(trained: bool, short: bool) -> None:
    plain = exact()
    plain.weight.requires_grad_(trained)
    other = copy.deepcopy(plain)
    assert pack(other, short=short)
    assert not other.weight.requires_grad
    assert unpack(other)
    assert type(other) is nn.Linear
    assert other.weight.requires_grad == trained
    assert other.weight.dtype is plain.weight.dtype
    assert torch.equal(other.weight, plain.weight)
    assert other.__dict__.keys() == plain.__dict__.keys()
    assert not unpack(other)


@EACH
def test_a_second_time_changes_nothing(short: bool) -> None:
    _, other = both(short)
    weight = other.weight
    assert not can_pack(other, short)
    assert not pack(other, short=short)
    assert other.weight is weight


COPIES = [copy.copy, copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer)), lambda layer: layer.float()]


@EACH
@pytest.mark.parametrize("again", COPIES, ids=["copy", "deepcopy", "pickle", "cast"])
def test_copies_are_packed_too(again: Callable[[nn.Linear], nn.Linear], short: bool) -> None:
    """In the same way; so are layers that a cast leaves as they are."""
    plain, other = both(short)
    with torch.no_grad():
        expected = other(torch.ones(3, 24))
    found = again(other)
    assert type(found) is PackedLinear
    assert lies_short(found) == short
    with torch.no_grad():
        assert torch.equal(found(torch.ones(3, 24)), expected)
    unpack(found)
    assert found.__dict__.keys() == plain.__dict__.keys()
    assert torch.equal(found.weight, plain.weight)
    assert found.weight.requires_grad


@EACH
def test_a_checkpoint_is_that_of_the_plain_layer(short: bool) -> None:
    plain, other = both(short)
    found, expected = other.state_dict(), plain.state_dict()
    assert found.keys() == expected.keys()
    assert all(found[name].dtype is expected[name].dtype for name in expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_is_loaded_and_packed(dtype: torch.dtype, short: bool) -> None:
    """In 16 bits if the one before was, and these numbers fit into them."""
    _, other = both(short)
    new = {"weight": torch.randn(40, 24).to(dtype).float(), "bias": torch.randn(40)}
    other.load_state_dict(new)
    assert type(other) is PackedLinear
    assert lies_short(other) == (short and dtype is torch.bfloat16)
    with torch.no_grad():
        assert_close(other(torch.eye(24)), (new["weight"] + new["bias"][:, None]).T)


@EACH
def test_casting_packs_anew_or_unpacks(short: bool, layout: str) -> None:
    plain, other = both(short)
    assert type(other.double()) is nn.Linear
    assert other.weight.dtype is torch.float64
    assert pack(other.float(), short=short)
    assert lies_short(other) == short
    own = layout == OWN  # which must be asked for
    if short or not own:
        assert type(other.bfloat16()) is PackedLinear
        assert lies_short(other) == own
        with torch.no_grad():
            assert_close(other(torch.ones(2, 24).bfloat16()), plain.bfloat16()(torch.ones(2, 24).bfloat16()))
        unpack(other.float())
        assert torch.equal(other.weight, plain.float().weight)


@EACH
@pytest.mark.usefixtures("either_way")
def test_gradients_of_what_stands_before_it(short: bool) -> None:
    plain, other = both(short)
    rows = torch.randn(3, 24)
    gradients = []
    for each in (plain, other):
        leaf = rows.clone().requires_grad_()
        each(leaf).square().sum().backward()
        gradients.append(leaf.grad)
    assert_close(gradients[1], gradients[0])


@EACH
def test_training_is_refused(short: bool) -> None:
    _, other = both(short)
    with pytest.raises(RuntimeError, match=r"must be plain for training \(lade.unpack_weights\)"):
        other.train()(torch.ones(1, 24))
    with torch.no_grad():
        other(torch.ones(1, 24))


@EACH
def test_autocast_is_followed(short: bool) -> None:
    plain, other = both(short)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, expected = other(torch.ones(2, 24)), plain(torch.ones(2, 24))
    assert found.dtype is expected.dtype is torch.bfloat16
    assert torch.equal(found, expected)


@EACH
def test_an_input_of_another_dtype_is_refused_as_by_the_plain_layer(short: bool) -> None:
    plain, other = both(short)
    for each in (plain, other):
        with pytest.raises(RuntimeError, match="same dtype"):
            each(torch.ones(2, 24, dtype=torch.float64))


def tied(short: bool) -> tuple[nn.Embedding, nn.Linear]:
    """An embedding, and a packed layer with its weight."""
    table, head = nn.Embedding(40, 24), exact()
    table.weight = head.weight
    assert pack(head, tied=True, short=short)
    assert lies_short(head) == short
    return table, head


@EACH
def test_a_tied_weight_stays_tied(short: bool) -> None:
    table, head = tied(short)
    with torch.no_grad():
        table.weight.mul_(2)
        assert_close(head(torch.eye(24)), (table.weight + head.bias[:, None]).T)  # what is packed is of no use now
    assert torch.equal(head.state_dict()["weight"], table.weight)
    twins = copy.deepcopy(nn.ModuleList([table, head]))
    for own, other in ((table, head), twins):
        unpack(other)
        assert other.weight is own.weight


@EACH
def test_the_product_of_a_tied_weight_is_that_of_one_moment(short: bool) -> None:
    """As somebody may write to the other module's weight."""
    table, head = tied(short)
    product = product_of(head, now=True)
    assert product is not None
    assert_close(product(torch.eye(24)), head(torch.eye(24)))
    assert product_of(head) is None
    with torch.no_grad():
        table.weight.mul_(2)
    assert product_of(head, now=True) is None


@EACH
def test_a_weight_that_somebody_sets_is_used(short: bool) -> None:
    _, other = both(short)
    other.weight = nn.Parameter(torch.zeros(40, 24))
    assert not lies_short(other)
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
