"""The dispatcher in transformers' registry: who is in a packed forward, who is not, and what is left afterwards."""

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from families import BY_NAME
from tiny import own_llama, tiny_model, words
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface
from transformers.models.llama.modeling_llama import LlamaAttention

import lade
from lade.core.stats import Clock
from lade.core.tree import Draft
from lade.target import attention, rowattention, verdicts
from lade.target.choice import Ways
from lade.target.masks import RowMask, layer_kinds
from lade.target.model import HFTarget
from lade.target.probe import empty_cache, probed_reason
from lade.target.rowattention import PackedForward, PackedKind, RootForward, stand_in
from lade.target.ways import Masked

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24}
CONFIG = lade.LookaheadConfig(mode="lookahead", ngram=4, window=5, guesses=5)
LENGTHS = (9, 4, 6)
WAYS = Ways((Masked(),))


@contextlib.contextmanager
def dispatching() -> Iterator[None]:
    """The dispatcher stays registered in the scope."""
    attention.install()
    try:
        yield
    finally:
        attention.remove()


def registered() -> Any:
    return AttentionInterface._global_mapping["sdpa"]


@pytest.fixture(autouse=True)
def through_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused decoders attend by themselves."""
    monkeypatch.setattr("lade.target.model.fuses", lambda model: False)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    assert registered() is sdpa_attention_forward
    yield
    assert registered() is sdpa_attention_forward
    assert attention._running.get() is None


@contextlib.contextmanager
def registering(function: Callable[..., Any]) -> Iterator[None]:
    """A user's own function in the registry."""
    before = registered()
    AttentionInterface.register("sdpa", function)
    try:
        yield
    finally:
        AttentionInterface.register("sdpa", before)


@contextlib.contextmanager
def attending(tell: Callable[[], object]) -> Iterator[None]:
    """Tells of every packed attention inside."""
    attend = PackedForward.attend

    def told(self: PackedForward, *args: Any, **kwargs: Any) -> Any:
        tell()
        return attend(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackedForward, "attend", told)
        yield


def assert_plain(model: PreTrainedModel, packed: bool = True) -> None:
    expected, calls = model.generate(**words(*LENGTHS), **GREEDY), []
    assert lade.generate(model, **words(*LENGTHS), **GREEDY, config=CONFIG).tolist() == expected.tolist()
    assert lade.last_stats().fallback is None
    with attending(lambda: calls.append(1)):
        lade.generate(model, **words(*LENGTHS), **GREEDY, config=CONFIG)
    assert bool(calls) == packed


# What is registered


def test_it_stands_there_while_augmented(augmented: None) -> None:
    assert registered() is not sdpa_attention_forward
    assert attention.registered_function("sdpa") is sdpa_attention_forward
    with lade.lookahead(own_llama()):
        lade.restore_all()
        assert registered() is not sdpa_attention_forward
    assert registered() is sdpa_attention_forward
    lade.augment_all()
    lade.augment_all()
    lade.restore_all()


def test_it_is_one_object_for_one_function() -> None:
    """Code compiled with it stays valid."""
    found = []
    for _ in range(2):
        with dispatching():
            found.append(registered())
    assert found[0] is found[1]


def test_a_user_s_own_function_is_called_and_stays() -> None:
    calls = []

    def own(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        output, weights = sdpa_attention_forward(*args, **kwargs)
        return output * 0.5, weights

    model = own_llama()
    with registering(own):
        assert_plain(model, packed=False)
        lade.augment_all()
        calls.clear()
        model.generate(**words(9), **GREEDY)
        assert calls
        lade.restore_all()
        assert registered() is own


def test_a_function_that_is_put_on_top() -> None:
    """Packed forwards go on; other ones meet the user's function; and it is not taken away."""
    model, seen = own_llama(), []
    assert_plain(model)
    lade.augment_all()
    ours = registered()

    def on_top(*args: Any, **kwargs: Any) -> Any:
        seen.append(args[1].shape)
        return ours(*args, **kwargs)

    with registering(on_top):
        lade.generate(model, **words(5), **GREEDY, config=CONFIG)
        assert registered() is not ours
        lade.restore_all()
        assert registered() is on_top
        assert_plain(model, packed=False)  # whatever it does, it does it to packed forwards too
    assert seen
    AttentionInterface.register("sdpa", sdpa_attention_forward)


def test_a_local_function_of_the_registry() -> None:
    model = own_llama()
    ALL_ATTENTION_FUNCTIONS["sdpa"] = lambda *args, **kwargs: sdpa_attention_forward(*args, **kwargs)
    try:
        assert_plain(model, packed=False)
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]
    assert_plain(model)


# Who is in a packed forward


def test_another_thread_decodes_plainly_meanwhile() -> None:
    """In the middle of a packed forward, the same model generates plainly in a second thread: its own text."""
    model = own_llama()
    expected, found = model.generate(**words(7), **GREEDY).tolist(), []

    def plainly() -> None:
        found.append(model.generate(**words(7), **GREEDY).tolist())

    def meanwhile() -> None:
        if len(found) < 3:
            thread = threading.Thread(target=plainly)
            thread.start()
            thread.join()

    with attending(meanwhile):
        ours = lade.generate(model, **words(*LENGTHS), **GREEDY, config=CONFIG)
    assert found == [expected] * 3
    assert ours.tolist() == model.generate(**words(*LENGTHS), **GREEDY).tolist()


def test_the_configuration_is_not_written() -> None:
    model = own_llama()
    before, seen = model.config.to_dict(), []
    with attending(lambda: seen.append(model.config._attn_implementation)):
        assert_plain(model)
    assert set(seen) == {"sdpa"}
    assert model.config.to_dict() == before


@pytest.mark.parametrize("augmented_too", [True, False])
def test_compiled_models_do_not_see_it(augmented_too: bool) -> None:
    """One graph without a break, whether the dispatcher is registered or not."""
    model = own_llama()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with dispatching() if augmented_too else contextlib.nullcontext(), torch.no_grad():
        ids = words(9)["input_ids"]
        assert torch.equal(
            compiled(input_ids=ids, use_cache=False).logits, model(input_ids=ids, use_cache=False).logits
        )


# Models that it does not suit


class CopiesItsMask(LlamaAttention):
    def forward(self, *args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        mask = None if attention_mask is None else attention_mask.clone()
        return super().forward(*args, attention_mask=mask, **kwargs)


class ShortensItsMask(LlamaAttention):
    def forward(self, *args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        mask = None if attention_mask is None else attention_mask[..., :1000]
        return super().forward(*args, attention_mask=mask, **kwargs)


class DropsItsMask(LlamaAttention):
    """Where it hides nothing."""

    def forward(self, *args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        if attention_mask is None or _hides(attention_mask):
            return super().forward(*args, attention_mask=attention_mask, **kwargs)
        return super().forward(*args, attention_mask=None, is_causal=False, **kwargs)


def _hides(mask: torch.Tensor) -> bool:
    return bool((~mask if mask.dtype == torch.bool else mask < 0).any())


@pytest.mark.parametrize(
    ("kind", "packed"),
    [(CopiesItsMask, True), (ShortensItsMask, True), (DropsItsMask, False)],
)
def test_layers_that_change_their_masks(kind: type[LlamaAttention], packed: bool) -> None:
    """Only the number of keys of the stand-in counts; where it is lost, rows are padded."""
    model = own_llama()
    for layer in model.model.layers:
        layer.self_attn.__class__ = kind
    assert_plain(model, packed)
    verdict = verdicts._last[model]
    assert (verdict.reason, verdict.unpacked is None) == (None, packed)
    assert packed or "changes its masks" in (verdict.unpacked or "")


@pytest.mark.parametrize("name", ["falcon", "gpt2", "gpt_oss"])
def test_the_verdict_says_why(name: str) -> None:
    family = BY_NAME[name]
    model = tiny_model(family, family.attention[-1])
    config = model.config.get_text_config(decoder=True)
    assert probed_reason(model, layer_kinds(config), None) is None
    assert verdicts.packs(model) == (name == "gpt2")
    assert (verdicts._last[model].unpacked is None) == (name == "gpt2")


def test_a_model_that_nobody_probed_is_padded() -> None:
    model = own_llama()
    target = HFTarget(model, empty_cache(model), layer_kinds(model.config), None, Clock())
    assert not target.packed
    assert probed_reason(model, layer_kinds(model.config), None) is None
    assert HFTarget(model, empty_cache(model), layer_kinds(model.config), None, Clock()).packed
    model.set_attn_implementation("eager")
    assert not HFTarget(model, empty_cache(model), layer_kinds(model.config), None, Clock()).packed


CHANGES = pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mask": None}, "masks"),
        ({"mask": torch.zeros(1, 1, 4, 3)}, "masks"),
        ({"mask": torch.zeros(1, 1, 2, 2)}, "masks"),
        ({"position_bias": torch.zeros(1, 4, 3, 5)}, "scores"),
        ({"key": torch.zeros(1, 2, 6, 4)}, "shape"),
        ({"query": torch.zeros(2, 4, 3, 4)}, "shape"),
    ],
)


@CHANGES
def test_what_it_cannot_follow_is_an_error(change: dict[str, Any], words: str) -> None:
    forward = PackedForward(
        [(0, 1), (1, 3)],
        [PackedKind(5, [(0, 2), (2, 5)], [RowMask.of(None), RowMask.of(torch.zeros(2, 3))], [1, 2])],
        WAYS,
    )
    given = _arguments(3)
    assert forward.attend(**given)[0].shape == (1, 3, 4, 4)
    with pytest.raises(NotImplementedError, match=words):
        forward.attend(**(given | change))


@CHANGES
def test_what_one_node_cannot_follow_is_an_error(change: dict[str, Any], words: str) -> None:
    forward, given = RootForward([(2, 5)]), _arguments(1)
    assert forward.attend(**given)[0].shape == (1, 1, 4, 4)
    with pytest.raises(NotImplementedError, match=words):
        forward.attend(**(given | change))


@pytest.mark.parametrize("heads", [2, 4])
def test_what_it_returns_can_be_viewed_as_any_shape(heads: int) -> None:
    """As that of transformers, of which some models take views; with and without groups of query heads."""
    mask = torch.zeros(3, 5)
    for forward, nodes in (
        (PackedForward([(0, 3)], [PackedKind(5, [(0, 5)], [RowMask.of(mask)], [3])], WAYS), 3),
        (PackedForward([(0, 1)], [PackedKind(5, [(2, 5)], [RowMask.of(None)], [1])], WAYS), 1),
        (RootForward([(2, 5)]), 1),
    ):
        given = _arguments(nodes) | {"query": torch.zeros(1, heads, nodes, 4)}
        assert forward.attend(**given)[0].view(nodes, -1).shape == (nodes, 4 * heads)


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_head_of_half_precision_gets_one_query(
    heads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One costs more than two there; float32 is computed as in plain decoding."""
    noise, queries = torch.Generator().manual_seed(0), []
    query, key, value = (torch.randn(1, n, t, 4, generator=noise) for n, t in ((heads, 1), (2, 5), (2, 5)))

    def attended(query: torch.Tensor, *given: Any, **others: Any) -> torch.Tensor:
        queries.append(query.shape[2])
        return scaled_dot_product_attention(query, *given, **others)

    monkeypatch.setattr(rowattention, "scaled_dot_product_attention", attended)
    given = {"query": query.to(dtype), "key": key.to(dtype), "value": value.to(dtype)}
    mask = stand_in(0, 1, dtype, torch.device("cpu"))
    found, _ = RootForward([(2, 5)]).attend(**given, mask=mask)
    expected = scaled_dot_product_attention(query, key[:, :, 2:], value[:, :, 2:], enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(found, expected.to(dtype), rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=2e-2)
    assert queries == [2 if dtype == torch.bfloat16 else 1]


def _arguments(nodes: int) -> dict[str, Any]:
    return {
        "query": torch.zeros(1, 4, nodes, 4),
        "key": torch.zeros(1, 2, 5, 4),
        "value": torch.zeros(1, 2, 5, 4),
        "mask": stand_in(0, nodes, torch.float32, torch.device("cpu")),
    }


# Memory that is used again


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@torch.no_grad()
def test_a_nan_of_a_closed_request_reaches_no_other(packed: bool) -> None:
    model = copy.deepcopy(tiny_model(BY_NAME["mistral-sliding"], "sdpa", torch.float64))
    model.get_input_embeddings().weight[60] = torch.nan
    kinds = layer_kinds(model.config)
    target = HFTarget(model, empty_cache(model), kinds, None, Clock(), packed=packed)
    target.open(0, 4)
    target.open(1, 4)
    poisoned, text = [60] * 40, [5, 6, 7]
    target.forward([0], [_chain(poisoned)])
    target.keep([0], [range(20)])
    target.close(0)
    target.open(2, 4)
    assert target.cache.groups[8].slabs.offsets[2] == 0
    for slots in ([2], [1, 2]):
        outputs = target.forward(slots, [_chain(text)] * len(slots))
        expected = model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
        for row in range(len(slots)):
            assert torch.allclose(outputs.at(row, 2)[0], expected, atol=1e-10, rtol=0)


def _chain(tokens: list[int]) -> Draft:
    nodes = len(tokens)
    return Draft(tokens, list(range(-1, nodes - 1)), list(range(nodes)), list(range(nodes)), [""] * nodes)


def test_many_rows_are_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each packed row is a call of attention per layer."""
    model, taken = own_llama(), list[bool]()
    made = HFTarget.__init__

    def noted(self: HFTarget, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        taken.append(self.packed)

    assert probed_reason(model, layer_kinds(model.config), None) is None
    monkeypatch.setattr(verdicts, "HOST_ROWS", 2)
    monkeypatch.setattr(HFTarget, "__init__", noted)
    for rows in (1, 2, 3):
        kwargs = words(*[9] * rows) | {"do_sample": False, "max_new_tokens": 12}
        assert lade.generate(model, **kwargs).tolist() == model.generate(**kwargs).tolist()
    assert taken == [True, True, False]
    assert verdicts.packs(model.to("meta"))
    assert not verdicts.packs(model, rows=2)
