"""Fused decoder layers: whatever the trees, rows, windows and chunks, the logits are those of the text alone."""

import copy
import gc
from typing import Any

import pytest
import torch
from families import BY_NAME, WINDOW
from hypothesis import given, settings
from hypothesis import strategies as st
from machinecode import unloaded
from tiny import own_llama, tiny_model, words
from torch.multiprocessing.reductions import StorageWeakRef
from treetargets import Reading, alone, empty_target, only_loops, random_draft, target_of

import lade
from lade.base.bits import DTYPES
from lade.core.tree import Draft, TreeBuilder, chain
from lade.pace.costfile import FUSED
from lade.pace.shared import shared_cost
from lade.target import choice, probe
from lade.target import layers as layers_module
from lade.target import model as target_model
from lade.target import store as store_module
from lade.target.choice import Ways
from lade.target.fused.angles import Angles
from lade.target.fused.decoder import SAMPLES, FusedDecoder
from lade.target.fused.layerarrays import MIXED
from lade.target.fused.linear import FewBlocks, FewTokens
from lade.target.fused.stack import COMPUTE
from lade.target.fused.stacked import MOST_NODES, Stack
from lade.target.fused.watch import SHARES, Watch
from lade.target.model import HFTarget
from lade.target.verdicts import fuses
from lade.target.ways import Masked
from lade.weights.packed import pack, unpack
from lade.weights.packing import SHORT, pack_weights, packing_of

FAMILIES = ("llama", "mistral", "mistral-sliding", "qwen2", "qwen2-sliding", "qwen3")
WAYS = pytest.mark.parametrize("one_call", [False, True], ids=["products", "one-call"])
TOLERANCE = 2e-5  # float32; a wrong mask or position gives 0.1 and more


def refuse(*args: object, **kwargs: object) -> None:
    raise AssertionError("transformers' code computes this forward")


def in_one_call(target: HFTarget, one_call: bool) -> HFTarget:
    """A target whose fused layers are computed in one call wherever they can be, or nowhere."""
    assert target.fused is not None
    target.fused.one_call = one_call
    return target


@pytest.mark.compat
@WAYS
@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=5)
@given(data=st.data())
@torch.no_grad()
def test_logits_are_those_of_the_text_alone(name: str, one_call: bool, data: st.DataObject) -> None:
    """Prompts are read in chunks beside drafts and roots alone; memory is tight, and used again."""
    model = tiny_model(BY_NAME[name], "sdpa")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers_module, "SLACK", 2)
        patch.setattr(store_module, "SPARE", 3)
        reading = Reading(model, True, TOLERANCE, fused=True)
        in_one_call(reading.target, one_call)
        patch.setattr(reading.target, "logits", refuse)
        reading.run(data)


@WAYS
@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=4)
@given(lengths=st.lists(st.integers(1, 2 * WINDOW), min_size=1, max_size=3), data=st.data())
@torch.no_grad()
def test_keys_and_values_are_those_of_the_layers(
    name: str, one_call: bool, lengths: list[int], data: st.DataObject
) -> None:
    """Of padded prompts, and of one forward of trees behind them."""
    model = tiny_model(BY_NAME[name], "sdpa")
    targets = [target_of(model, tuple(lengths), fused=fused) for fused in (True, False)]
    in_one_call(targets[0], one_call)
    drafts = [random_draft(data, root=3 + row) for row in range(len(lengths))]
    fused, theirs = (target.forward(range(len(lengths)), drafts) for target in targets)
    torch.testing.assert_close(fused.logits, theirs.logits, atol=TOLERANCE, rtol=0)
    for one, other in zip(*(target.cache.layers for target in targets), strict=True):
        torch.testing.assert_close(one.keys, other.keys, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(one.values, other.values, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_half_precision_rounds_where_transformers_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms sum in another order, and nothing else differs: nearly all logits have the same bits. Attention is
    PyTorch's here; what the loop of attention rounds is in `test_looped`."""
    monkeypatch.setattr(target_model, "ways_of", lambda *args: Ways((Masked(),), timed=False))
    model = tiny_model(BY_NAME[name], "sdpa", torch.bfloat16)
    fused, theirs = (target_of(model, (9,), fused=fused).forward([0], [tree()]).logits for fused in (True, False))
    assert (fused == theirs).float().mean() > 0.9
    torch.testing.assert_close(fused, theirs, atol=0.1, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.usefixtures("small_weights")
@torch.no_grad()
def test_half_precision_in_one_call_rounds_where_products_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention and products are the loops' in both ways, whatever is faster."""
    if not COMPUTE.ready:
        pytest.skip("the loops are not compiled in this run: LADE_COMPILED=1 compiles them")
    only_loops(monkeypatch)
    model = packed_model(name)
    targets = [in_one_call(target_of(model, (9,), fused=True), one_call) for one_call in (False, True)]
    products, one = (target.forward([0], [tree()]).logits for target in targets)
    torch.testing.assert_close(products, one, atol=0, rtol=0)


def exact_model(name: str = "llama", tied: bool = False, dtype: torch.dtype = torch.float32) -> Any:
    """A model, all whose numbers are bfloat16's."""
    sound = tiny_model(BY_NAME[name], "sdpa")
    model = type(sound)(copy.deepcopy(sound.config)).eval()
    model.load_state_dict(sound.state_dict())
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    model.generation_config = copy.deepcopy(sound.generation_config)
    return model.bfloat16().to(dtype)


def packed_model(name: str = "llama", tied: bool = False, dtype: torch.dtype = torch.bfloat16) -> Any:
    """In 16 bits, of which each part of a layer is packed."""
    return packed_in_16_bits(exact_model(name, tied, dtype))


def packed_in_16_bits(model: Any) -> Any:
    assert pack_weights(model, short=True)
    return model


def packed_anew(layer: Any) -> None:
    """As the embedding's weight, to which somebody has written, is now."""
    unpack(layer)
    pack(layer, tied=True, short=True)


@WAYS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("small_weights")
@torch.no_grad()
def test_packed_weights_that_change_are_seen(one_call: bool, dtype: torch.dtype) -> None:
    """Those of the head, which the embedding shares, and of a layer; after the latter, transformers computes."""
    model = packed_model(tied=True, dtype=dtype)
    tolerances = {"atol": 2 * TOLERANCE, "rtol": 0} if dtype is torch.float32 else {"atol": 0.1, "rtol": 0.02}
    target = in_one_call(empty_target(model, packed=True, fused=True), one_call)
    target.open(0, 4)
    fused: Any = target.fused
    other = packed_model(dtype=dtype).model.layers[0].mlp.down_proj
    for change in (
        lambda: None,
        lambda: model.model.embed_tokens.weight.mul_(2),
        lambda: packed_anew(model.lm_head),
        lambda: setattr(model.lm_head, "bias", torch.nn.Parameter(torch.ones(len(model.lm_head.weight), dtype=dtype))),
        lambda: setattr(model.model.layers[1].mlp, "down_proj", other),
    ):
        assert fused.fits()
        change()
        outputs = target.forward([0], [chain([5, 6, 7], asked=True)])
        torch.testing.assert_close(outputs.at(0, 2)[0], alone(model, [5, 6, 7]), **tolerances)
    assert not fused.fits()


@pytest.mark.parametrize("tied", [False, True], ids=["head", "tied"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
@pytest.mark.usefixtures("small_weights")
@torch.no_grad()
def test_float32_weights_in_16_bits_compute_what_plain_ones_do(
    name: str, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With biases of queries, keys and values, too, and norms of heads: in one call as Python and as machine code, and
    by products; transformers computes the same."""
    model = exact_model(name, tied)
    expected = target_of(model, (9,)).forward([0], [tree()]).logits.clone()
    packed_in_16_bits(model)
    found = [target_of(model, (9,)).forward([0], [tree()]).logits]
    monkeypatch.setattr(HFTarget, "logits", refuse)
    for one_call in (False, True):
        target = in_one_call(target_of(model, (9,), fused=True), one_call)
        assert target.fused is not None
        assert target.fused.stack is not None
        assert target.fused.stack.kind == MIXED
        found.append(target.forward([0], [tree()]).logits.clone())
        with unloaded():
            found.append(target.forward([0], [tree()]).logits.clone())
    for each in found:
        torch.testing.assert_close(each, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.compat
@WAYS
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
@pytest.mark.usefixtures("small_weights")
@settings(max_examples=3)
@given(data=st.data())
@torch.no_grad()
def test_logits_of_weights_in_16_bits(name: str, one_call: bool, data: st.DataObject) -> None:
    """They are those of the text alone, for drafts and chunks of several rows; in one call as machine code alone."""
    if one_call and not COMPUTE.ready:
        pytest.skip("the loops are not compiled in this run: LADE_COMPILED=1 compiles them")
    reading = Reading(packed_model(name, dtype=torch.float32), True, TOLERANCE, fused=True)
    in_one_call(reading.target, one_call)
    reading.run(data)


@pytest.mark.usefixtures("small_weights")
@torch.no_grad()
def test_the_memory_of_a_packed_head_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, found = packed_model(tied=True), list[Any]()
    target, of = target_of(model, (9,), fused=True), FewBlocks.of
    monkeypatch.setattr("lade.target.fused.decoder.FewBlocks.of", lambda given: found.append(given) or of(given))
    for _ in range(3):
        target.forward([0], [tree()])
    assert [each.weight for each in found] == [model.lm_head.weight]


def tree() -> Draft:
    builder = TreeBuilder(5)
    for tokens in ([6, 7, 8], [6, 9], [10, 11]):
        builder.add_path(0, tokens, "test")
    return builder.build()


@pytest.mark.usefixtures("small_weights")
@torch.no_grad()
def test_packed_weights_are_multiplied_as_they_lie() -> None:
    model = own_llama()
    before = target_of(model, (9,), fused=True).forward([0], [tree()]).logits
    pack_weights(model)
    target = target_of(model, (9,), fused=True)
    assert target.fused is not None
    torch.testing.assert_close(target.forward([0], [tree()]).logits, before, atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_scaled_rotary_positions() -> None:
    """Those of YaRN are multiplied by a number."""
    config = copy.deepcopy(tiny_model(BY_NAME["llama"], "sdpa").config)
    config.rope_parameters = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    model = type(own_llama())(config).eval()
    assert model.model.rotary_emb.attention_scaling != 1
    target = target_of(model, (9,), fused=True)
    target.logits = refuse  # type: ignore[method-assign, assignment]
    expected = alone(model, [*words(9)["input_ids"][0].tolist(), 5])
    torch.testing.assert_close(target.forward([0], [Draft.alone(5)]).at(0, 0)[0], expected, atol=TOLERANCE, rtol=0)


def hooked(model: Any) -> None:
    model.model.layers[1].mlp.register_forward_hook(lambda module, args, output: output * 2)


def replaced(model: Any) -> None:
    model.model.layers[0].self_attn.q_proj.weight = torch.nn.Parameter(model.model.norm.weight.new_ones(32, 32))


def moved(model: Any) -> None:
    model.model.layers[0].input_layernorm.weight.data = torch.full((32,), 2.0)


def written(model: Any) -> None:
    model.model.layers[0].input_layernorm.weight.mul_(2)


def turned(model: Any) -> None:
    """Other memory, of another order."""
    product = model.model.layers[1].mlp.down_proj
    product.weight.data = product.weight.data.flip(0).T.contiguous().T


CHANGES = (hooked, replaced, moved, written, turned)


def changed_between_steps(change: Any, one_call: bool) -> tuple[HFTarget, torch.Tensor]:
    """A target behind its first step, whose model is another one now, and the logits that this computes."""
    model = own_llama()
    target = in_one_call(empty_target(model, packed=True, fused=True), one_call)
    target.open(0, 4)
    target.forward([0], [chain([5, 6, 7], asked=True)])
    change(model)
    return target, alone(model, [5, 6, 7])  # a change of keys and values would need a new text


@WAYS
@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_changes_between_steps_are_seen(change: Any, one_call: bool) -> None:
    target, expected = changed_between_steps(change, one_call)
    outputs = target.forward([0], [chain([5, 6, 7], asked=True)])
    torch.testing.assert_close(outputs.at(0, 2)[0], expected, atol=TOLERANCE, rtol=0)


@WAYS
@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_changes_behind_the_back_of_undisturbed_steps_are_seen_soon(change: Any, one_call: bool) -> None:
    """Such as another thread's; at the next step, as soon as others' code may have run."""
    target, expected = changed_between_steps(change, one_call)
    target.undisturbed = True
    for _ in range(SHARES):
        outputs = target.forward([0], [chain([5, 6, 7], asked=True)])
    torch.testing.assert_close(outputs.at(0, 2)[0], expected, atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_undisturbed_steps_look_at_a_share_each(monkeypatch: pytest.MonkeyPatch) -> None:
    target, shares, holds = target_of(own_llama(), (9,), fused=True), list[int | None](), Watch.holds
    monkeypatch.setattr(Watch, "holds", lambda watch, share: shares.append(share) or holds(watch, share))
    for undisturbed in (False, True, True, False, True):
        target.undisturbed = undisturbed
        target.forward([0], [Draft.alone(5)])
    assert [share is None for share in shares] == [True, False, False, True, False]
    assert len({*shares}) == 4


@torch.no_grad()
def test_the_head_is_called_where_something_hangs_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its product is computed as those of the layers are."""
    model, calls, products = own_llama(), list[str](), list[Any]()
    target = target_of(model, (9,), fused=True)
    monkeypatch.setattr(target, "logits", refuse)
    of = FewTokens.of
    monkeypatch.setattr("lade.target.fused.decoder.FewTokens.of", lambda layer: products.append(layer) or of(layer))

    def step() -> torch.Tensor:
        return target.forward([0], [chain([5, 6], asked=True, scored=True)]).logits.clone()

    expected = step()
    assert products == [model.lm_head]
    handle = model.lm_head.register_forward_hook(lambda *given: calls.append("hook"))
    torch.testing.assert_close(step(), expected, atol=TOLERANCE, rtol=0)
    handle.remove()
    monkeypatch.setattr(model.lm_head, "forward", lambda states: calls.append("patch") or states)
    step()
    assert calls == ["hook", "patch"]
    assert products == [model.lm_head]


@torch.no_grad()
def test_where_gradients_or_autocast_are_asked_for_transformers_computes() -> None:
    target = target_of(own_llama(), (9,), fused=True)
    fused: Any = target.fused
    assert fused.fits()
    with torch.enable_grad():
        assert not fused.fits()
    with torch.autocast("cpu", torch.bfloat16):
        assert not fused.fits()


@pytest.mark.parametrize("sampled", [False, True])
def test_texts_are_plain_decodings(sampled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a batch of unequal rows; the self-probe lets the fused layers compute."""
    monkeypatch.setattr("lade.target.probe.can_fuse", lambda model: True)
    model, inputs = own_llama(), words(9, 4) | {"max_new_tokens": 40, "do_sample": sampled}
    torch.manual_seed(3)
    plain = model.generate(**inputs)
    torch.manual_seed(3)
    ours = lade.generate(model, **inputs)
    assert fuses(model)
    assert ours.tolist() == plain.tolist()


@pytest.mark.parametrize(("name", "sampled"), [("llama", False), ("llama", True), ("qwen2", False)])
@pytest.mark.usefixtures("small_weights")
def test_texts_of_weights_in_16_bits(name: str, sampled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of the plain model, by transformers alone."""
    monkeypatch.setattr("lade.target.probe.can_fuse", lambda model: True)
    model, inputs = exact_model(name), words(9, 4) | {"max_new_tokens": 40, "do_sample": sampled}
    torch.manual_seed(3)
    plain = model.generate(**inputs)
    packed_in_16_bits(model)
    torch.manual_seed(3)
    ours = lade.generate(model, **inputs)
    assert packing_of(model) == SHORT
    assert fuses(model)
    assert ours.tolist() == plain.tolist()


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether fused layers were asked for, of each time that trees were compared with texts."""
    found, own = list[bool](), probe._probe

    def probed(*given: Any, packed: bool, fused: bool = False) -> str | None:
        found.append(fused)
        return own(*given, packed=packed, fused=fused)

    monkeypatch.setattr(probe, "_probe", probed)
    return found


def test_calls_after_the_loops_are_compiled_have_them(monkeypatch: pytest.MonkeyPatch, probes: list[bool]) -> None:
    """The self-probe runs once more for them."""
    model, inputs = own_llama(), words(9) | {"max_new_tokens": 4, "do_sample": False}
    for compiled in (False, True, True):
        monkeypatch.setattr("lade.target.probe.can_fuse", lambda model, found=compiled: found)
        lade.generate(model, **inputs)
        assert fuses(model) == compiled
    assert probes == [False, True]


def test_a_model_that_is_not_fusible_any_more_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later call notes it, whose costs are then those of transformers' layers."""
    model, inputs = own_llama(), words(9) | {"max_new_tokens": 4, "do_sample": False}
    for fusible in (True, False, True):
        monkeypatch.setattr("lade.target.probe.can_fuse", lambda model, found=fusible: found)
        lade.generate(model, **inputs)
        assert fuses(model) == fusible


def test_an_engine_has_them_once_the_loops_are_compiled(monkeypatch: pytest.MonkeyPatch, probes: list[bool]) -> None:
    """Planned and probed by a step, whose thread computes, and not by whoever submits."""
    model, inputs = own_llama(), words(9) | {"max_new_tokens": 24, "do_sample": False}
    plain = model.generate(**inputs)
    planned = list[Any]()
    monkeypatch.setattr("lade.target.probe.can_fuse", lambda model: False)
    monkeypatch.setattr("lade.entry.engine.is_compiled", lambda: False)
    with lade.Engine(model) as engine:
        requests = [engine.submit(**inputs)]
        engine.step()
        monkeypatch.setattr("lade.target.probe.can_fuse", lambda model: planned.append(model) or True)
        requests.append(engine.submit(**inputs))
        assert not planned
        assert probes == [False]
        assert engine._target.fused is None
        monkeypatch.setattr("lade.entry.engine.is_compiled", lambda: True)
        engine.run()
        assert probes == [False, True]
        assert engine._target.fused is not None
        assert not engine._may_fuse
        assert engine._pace._controller.cost is engine._pace._shared is shared_cost(model, steps=FUSED)
    assert [request.tokens for request in requests] == 2 * plain.tolist()


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ways in which layers are computed, of each forward."""
    found = list[str]()
    products, stack = FusedDecoder._by_products, Stack.compute

    def compute(*given: Any) -> torch.Tensor:
        found.append("one call")
        with unloaded():
            return stack(*given)

    monkeypatch.setattr(COMPUTE, "machine", refuse)
    monkeypatch.setattr(FusedDecoder, "_by_products", lambda *given: found.append("products") or products(*given))
    monkeypatch.setattr(Stack, "compute", compute)
    monkeypatch.setattr(choice, "_choices", {})
    return found


@pytest.mark.parametrize("seconds", [{"products": 1.0, "one call": 0.9}, {"products": 0.9, "one call": 1.0}])
@torch.no_grad()
def test_the_faster_way_computes(seconds: dict[str, float], tries: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are tried in turn for a shape."""

    def timed(found: Any, way: Any, compute: Any) -> Any:
        found.note(way, seconds[way.name])
        return compute()

    monkeypatch.setattr("lade.target.fused.decoder.timed", timed)
    target = target_of(own_llama(), (20,), fused=True)
    untimed = list[bool]()
    for _ in range(2 * SAMPLES + 3):
        target.forward([0], [tree()])
        untimed.append(target.untimed)
    assert all(untimed[: 2 * SAMPLES])
    best = min(seconds, key=seconds.__getitem__)
    assert tries == ["products", "one call"] * SAMPLES + [best] * 3
    assert untimed[2 * SAMPLES :] == [False] * 3 or best == "products"  # in which ways of attention are tried
    target.forward([0], [Draft.alone(5)])
    assert tries[-1] == "products"


@torch.no_grad()
def test_attention_in_another_way_is_computed_by_products(tries: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user may ask for flash attention; a root alone has one way."""
    monkeypatch.setattr(target_model, "ways_of", lambda *args: Ways((Masked(),)))
    target = in_one_call(target_of(own_llama(), (9,), fused=True), True)
    for draft in (tree(), Draft.alone(5)):
        target.forward([0], [draft])
    assert tries == ["products", "one call"]


@torch.no_grad()
def test_many_tokens_are_computed_by_products(tries: list[str]) -> None:
    target = in_one_call(empty_target(own_llama(), packed=True, fused=True), True)
    target.open(0, 2 * MOST_NODES)
    for nodes in (MOST_NODES, MOST_NODES + 1):
        target.forward([0], [chain([5] * nodes, asked=True)])
    assert tries == ["one call", "products"]
    assert target.clock.attention["loop"] == 1


def with_bias(name: str) -> Any:
    def change(model: Any) -> None:
        size = model.model.layers[1].get_submodule(name).out_features
        model.model.layers[1].get_submodule(name).bias = torch.nn.Parameter(torch.ones(size))

    return change


def halved(model: Any) -> None:
    model.bfloat16()


def packed_halves(model: Any) -> None:
    packed_in_16_bits(model.bfloat16())


def mixed(model: Any) -> None:
    """Float32, with weights in 16 bits."""
    packed_in_16_bits(model.bfloat16().float())


def mixed_but_one(model: Any) -> None:
    """A layer's weight is multiplied as it lies."""
    mixed(model)
    unpack(model.model.layers[1].mlp.down_proj)


def mixed_and_packed(model: Any) -> None:
    """One is packed in float32."""
    model.bfloat16().float()
    model.model.layers[1].mlp.down_proj.weight.mul_(1 + 2.0**-9)
    packed_in_16_bits(model)


@pytest.mark.parametrize(
    ("change", "one_call"),
    [
        (lambda model: None, True),
        (with_bias("self_attn.k_proj"), True),
        (with_bias("self_attn.o_proj"), False),
        (with_bias("mlp.up_proj"), False),
        (pack_weights, False),
        (halved, False),
        (packed_halves, True),
        (lambda model: with_bias("self_attn.q_proj")(model) or packed_halves(model), True),
        (lambda model: with_bias("mlp.gate_proj")(model) or packed_halves(model), False),
        (mixed, True),
        (lambda model: with_bias("self_attn.v_proj")(model) or mixed(model), True),
        (lambda model: with_bias("mlp.down_proj")(model) or mixed(model), False),
        (mixed_but_one, False),
        (mixed_and_packed, False),
    ],
    ids=[
        *("plain", "key", "output", "up", "packed", "half", "half-packed", "half-query", "half-gate"),
        *("mixed", "mixed-value", "mixed-down", "mixed-but-one", "mixed-and-packed"),
    ],
)
@pytest.mark.usefixtures("small_weights")
@torch.no_grad()
def test_which_layers_are_computed_in_one_call(change: Any, one_call: bool, tries: list[str]) -> None:
    model = own_llama()
    change(model)
    target = in_one_call(target_of(model, (9,), fused=True), True)
    expected = alone(model, [*words(9)["input_ids"][0].tolist(), 5])
    tolerance = TOLERANCE if model.dtype is torch.float32 else 0.1
    torch.testing.assert_close(target.forward([0], [Draft.alone(5)]).at(0, 0)[0], expected, atol=tolerance, rtol=0)
    assert tries == ["one call" if one_call else "products"]


@WAYS
@torch.no_grad()
def test_memory_of_slots_that_have_closed(one_call: bool) -> None:
    """It is free at once, and the next slots have their own."""
    model = own_llama()
    target = in_one_call(empty_target(model, packed=True, fused=True), one_call)
    for tokens in ([5, 6, 7], [8, 9, 4, 3]):
        target.open(0, 4)
        outputs = target.forward([0], [chain(tokens, asked=True)])
        torch.testing.assert_close(outputs.at(0, len(tokens) - 1)[0], alone(model, tokens), atol=TOLERANCE, rtol=0)
        kept = [StorageWeakRef(layer.keys.untyped_storage()) for layer in target.cache.layers]
        target.close(0)
        gc.collect()
        assert all(memory.expired() for memory in kept)


@WAYS
@pytest.mark.parametrize("token", [-1, 999])
@torch.no_grad()
def test_ids_that_the_model_cannot_read(one_call: bool, token: int) -> None:
    """The error is the model's own."""
    model = own_llama()
    target = in_one_call(target_of(model, (9,), fused=True), one_call)
    with pytest.raises(IndexError) as plain:
        model(torch.tensor([[token]]))
    with pytest.raises(IndexError) as fused:
        target.forward([0], [Draft.alone(token)])
    assert str(fused.value) == str(plain.value)


def test_layers_in_one_call_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lade.target.probe.can_fuse", lambda model: True)
    own = Stack.compute
    for factor, fused in ((1.0, True), (1.5, False)):
        monkeypatch.setattr(Stack, "compute", lambda *given, factor=factor: own(*given) * factor)
        model, inputs = own_llama(), words(9) | {"max_new_tokens": 12, "do_sample": False}
        assert lade.generate(model, **inputs).tolist() == model.generate(**inputs).tolist()
        assert fuses(model) == fused


def test_what_the_probe_finds_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch, probes: list[bool]) -> None:
    own = Angles.of
    monkeypatch.setattr(Angles, "of", lambda *given: own(*given)[::-1])
    model, inputs = own_llama(), words(9) | {"max_new_tokens": 12, "do_sample": False}
    for compiled in (False, True, True):
        monkeypatch.setattr("lade.target.probe.can_fuse", lambda model, found=compiled: found)
        assert lade.generate(model, **inputs).tolist() == model.generate(**inputs).tolist()
        assert not fuses(model)
        assert lade.last_stats().fallback is None
    assert probes == [False, True]
