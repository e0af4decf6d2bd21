"""A packed model: the same texts, fingerprint and checkpoint, of every family; and back again."""

import copy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from families import BRANCHABLE, BY_NAME, Family
from tiny import own_llama, tiny_model, words
from torch import nn
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, LlamaForCausalLM

import lade
from lade.drafters import compiling
from lade.facts import fingerprint as facts
from lade.memory.warm import warming
from lade.pace.costfile import cost_file, describe
from lade.pace.shared import shared_cost
from lade.weights import packed, packing
from lade.weights.packed import lies_short
from lade.weights.packing import PACKED, SHORT, has_packed_weights, packing_of

pytestmark = [
    pytest.mark.skipif(not packed.packs(torch.float32), reason="oneDNN packs no weights on this machine"),
    pytest.mark.usefixtures("layout", "small_weights"),
]
EACH = pytest.mark.parametrize("short", [False, True], ids=["own", "short"])
CASE = words(9, 5)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(**CASE).logits
    return found


def linear_layers(model: nn.Module) -> int:
    return sum(type(layer) is nn.Linear for layer in model.modules())


def exact(model: Any) -> Any:
    """The model with the nearest numbers that bfloat16 has."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())
    return model


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """There may be machine code; how often it was begun to load."""
    found = list[bool]()
    monkeypatch.setattr(compiling, "possible", lambda: True)
    monkeypatch.setattr(compiling, "begin", lambda: found.append(True))
    return found


def test_weights_that_fit_into_16_bits(begun: list[bool]) -> None:
    """They are packed so, and what multiplies them is loaded."""
    model = exact(own_llama())
    before, layers = logits(model), linear_layers(model)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert lade.pack_weights(model) == layers
    assert begun == [True]
    assert packing_of(model) == SHORT == "packed in 16 bits"
    assert has_packed_weights(model)
    assert sum(map(lies_short, model.modules())) == layers
    assert model.dtype is torch.float32
    assert_close(logits(model), before, rtol=0, atol=1e-5)
    assert lade.unpack_weights(model) == layers
    assert packing_of(model) == ""
    assert torch.equal(logits(model), before)
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("possible", [False, True])
def test_weights_that_do_not_fit(possible: bool, begun: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Or that no machine code would multiply."""
    monkeypatch.setattr(compiling, "possible", lambda: possible)
    model = own_llama() if possible else exact(own_llama())
    assert lade.pack_weights(model) == linear_layers(own_llama())
    assert begun == [True] * possible
    assert packing_of(model) == PACKED == "packed"
    assert not any(map(lies_short, model.modules()))


def test_layers_of_both_kinds() -> None:
    """Each is packed as its own weight can be."""
    model = exact(own_llama())
    with torch.no_grad():
        model.lm_head.weight[1, 1] = 1 + 2.0**-9
    assert packing.pack_weights(model, short=True) == linear_layers(own_llama())
    assert not lies_short(model.lm_head)
    assert packing_of(model) == SHORT


@pytest.mark.parametrize("family", BRANCHABLE, ids=lambda family: family.name)
def test_every_family_computes_the_same_in_16_bits(family: Family) -> None:
    model = exact(copy.deepcopy(tiny_model(family)))
    before, layers = logits(model), linear_layers(model)
    assert packing.pack_weights(model, short=True) == layers
    assert packing_of(model) == SHORT
    assert model.dtype is torch.float32
    assert_close(logits(model), before, rtol=1e-4, atol=1e-4)


def test_where_no_layer_can_be_packed_none_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """As their products would differ."""
    monkeypatch.setattr(packed, "_agree", lambda plain, other: False)
    model = own_llama()
    assert lade.pack_weights(model) == 0
    assert not has_packed_weights(model)


@pytest.mark.parametrize("family", BRANCHABLE, ids=lambda family: family.name)
def test_every_family_computes_the_same(family: Family) -> None:
    model = tiny_model(family)
    before, layers = logits(model), linear_layers(model)
    try:
        assert lade.pack_weights(model) == layers > 0
        assert linear_layers(model) == 0
        found = logits(model)
    finally:
        assert lade.unpack_weights(model) == layers
    assert_close(found, before, rtol=1e-4, atol=1e-4)
    assert torch.equal(logits(model), before)


@EACH
@pytest.mark.parametrize("sample", [False, True])
def test_texts_are_those_of_plain_decoding(sample: bool, short: bool) -> None:
    model = exact(own_llama())
    packing.pack_weights(model, short)
    assert packing_of(model) == (SHORT if short else PACKED)
    settings = {"max_new_tokens": 40, "do_sample": sample}
    torch.manual_seed(0)
    plain = model.generate(**CASE, **settings)
    torch.manual_seed(0)
    assert torch.equal(lade.generate(model, **CASE, **settings), plain)
    stats = lade.last_stats()
    assert stats is not None
    assert stats.fallback is None
    assert stats.tokens_per_step > 1


@EACH
def test_the_fingerprint_stays(short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = exact(own_llama())
    before, state = facts.fingerprint(model), facts.weights_state(model)
    packing.pack_weights(model, short)
    assert facts.weights_state(model) != state
    assert facts.configuration_key(model) == facts.configuration_key(own_llama())
    with monkeypatch.context() as patch:
        patch.setattr(facts, "_hash", None)  # it is not computed anew
        assert facts.fingerprint(model) == before
    facts._known.pop(model)
    assert facts.fingerprint(model) == before
    lade.unpack_weights(model)
    assert facts.fingerprint(model) == before


@EACH
def test_a_warm_table_stays_known(
    short: bool, table_folder: Path, short_texts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often weights are packed and unpacked: no file is read again. A write between ends it."""
    model = exact(own_llama())
    lade.warm_up(model)
    table = warming.cached(model)
    with monkeypatch.context() as patch:
        patch.setattr(warming, "load", None)
        patch.setattr(facts, "_hash", None)
        for _ in range(12):
            packing.pack_weights(model, short)
            assert warming.cached(model) is table
            lade.unpack_weights(model)
            assert warming.cached(model) is table
    with torch.no_grad():
        model.lm_head.weight.add_(1)
    lade.pack_weights(model)
    assert warming.cached(model) is None


def test_weights_packed_again_have_another_state() -> None:
    """The address of a packed weight may be that of an earlier one."""
    model = own_llama()
    states = set()
    for _ in range(4):
        lade.pack_weights(model)
        states.add(facts.weights_state(model))
        lade.unpack_weights(model)
        with torch.no_grad():
            model.lm_head.weight.data[1, 1] += 1
    assert len(states) == 4


def test_a_changed_model_gets_a_new_fingerprint() -> None:
    model = own_llama()
    before = facts.fingerprint(model)
    lade.pack_weights(model)
    model.load_state_dict({name: weight + 1 for name, weight in model.state_dict().items()})
    assert facts.fingerprint(model) != before
    lade.unpack_weights(model)
    assert facts.fingerprint(model) != before


def test_a_fingerprint_of_earlier_weights_is_not_kept() -> None:
    model = own_llama()
    before = facts.fingerprint(model)
    with torch.no_grad():
        model.lm_head.weight.add_(1)
    lade.pack_weights(model)
    assert facts.fingerprint(model) != before


@EACH
def test_a_saved_model_is_the_plain_one(short: bool, tmp_path: Path) -> None:
    model = exact(own_llama())
    expected = {name: weight.clone() for name, weight in model.state_dict().items()}
    packing.pack_weights(model, short)
    model.save_pretrained(tmp_path)
    found = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").state_dict()
    assert all(weight.dtype is torch.float32 for weight in found.values())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@EACH
def test_an_embedding_and_its_head_share_their_weight_again(short: bool) -> None:
    config = own_llama().config.__class__(**own_llama().config.to_dict() | {"tie_word_embeddings": True})
    model = exact(LlamaForCausalLM(config).eval())
    shared = model.get_input_embeddings().weight
    assert model.lm_head.weight is shared
    before = logits(model)
    packing.pack_weights(model, short)
    assert lies_short(model.lm_head) == short
    assert model.lm_head.weight is not shared
    assert_close(logits(model), before, rtol=1e-4, atol=1e-4)
    lade.unpack_weights(model)
    assert model.lm_head.weight is model.get_input_embeddings().weight is shared


def test_costs_of_steps_are_kept_apart() -> None:
    """Those of plain weights, packed ones and ones in 16 bits."""
    model, found = exact(own_llama()), list[tuple[Any, ...]]()
    for _ in range(2):
        for pack in (lambda model: 0, packing.pack_weights, lambda model: packing.pack_weights(model, short=True)):
            pack(model)
            found.append((describe(model).get("weights"), cost_file(model), shared_cost(model)))
            lade.unpack_weights(model)
            assert not has_packed_weights(model)
    assert found[:3] == found[3:]
    assert [weights for weights, _, _ in found[:3]] == [None, PACKED, SHORT]
    assert all(len({each[part] for each in found}) == 3 for part in (1, 2))


class Reader(nn.Module):
    """Reads the weight of its linear layer by itself."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.inner = layer

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states @ self.inner.weight.T


@EACH
def test_a_model_that_reads_weights_by_itself_stays_as_it_was(short: bool) -> None:
    model = exact(own_llama())
    model.lm_head = Reader(model.lm_head)
    before, layers = logits(model), linear_layers(model)
    with pytest.raises(ValueError, match="model must be one that calls its linear layers, got "):
        packing.pack_weights(model, short)
    assert linear_layers(model) == layers
    assert not has_packed_weights(model)
    assert torch.equal(logits(model), before)


@EACH
def test_an_adapter_s_layers_are_packed_too(short: bool) -> None:
    """In float32: it casts states to the dtype of its weights."""
    model = peft.get_peft_model(own_llama(), peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)).eval()
    before, layers = logits(exact(model)), linear_layers(own_llama()) + 2 * own_llama().config.num_hidden_layers
    assert packing.pack_weights(model, short) == layers
    assert not any(map(lies_short, model.modules()))
    assert_close(logits(model), before, rtol=1e-4, atol=1e-4)
    with pytest.raises(NotImplementedError):
        model.merge_adapter()
    lade.unpack_weights(model)
    assert torch.equal(logits(model), before)


def test_a_failure_leaves_nothing_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, layers, real = own_llama(), linear_layers(own_llama()), packing.pack
    calls = iter(range(9))

    def failing(layer: nn.Module, tied: bool, short: bool) -> bool:
        if isinstance(layer, nn.Linear) and next(calls) == 5:
            raise MemoryError
        return real(layer, tied, short)

    monkeypatch.setattr(packing, "pack", failing)
    with pytest.raises(MemoryError):
        lade.pack_weights(model)
    assert linear_layers(model) == layers
    assert not has_packed_weights(model)


def test_wrong_arguments() -> None:
    for call in (lade.pack_weights, lade.unpack_weights):
        with pytest.raises(ValueError, match="model must be a transformers model that can generate, got 3"):
            call(3)


@pytest.mark.parametrize("model", [tiny_model(BY_NAME["llama"], dtype=torch.float64), own_llama().to("meta")])
def test_weights_of_other_dtypes_or_devices_stay_plain(model: LlamaForCausalLM) -> None:
    assert lade.pack_weights(model) == 0
    assert not has_packed_weights(model)


def test_tokens_that_the_model_cannot_read_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that need more than tokens are packed without being tried."""
    model = own_llama()
    monkeypatch.setattr(packing, "_problem", lambda model: "needs a picture")
    assert lade.pack_weights(model) > 0


def test_loading() -> None:
    model, _ = lade.models.load("stories260K", pack=True)
    assert has_packed_weights(model)
    with pytest.raises(ValueError, match="pack must be True, False, 1 or 0, got 'yes'"):
        lade.models.load("stories260K", pack="yes")  # type: ignore[arg-type]
