"""What cannot be branched decodes plainly: the same text as without lade, and one warning that says why."""

import copy
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import families
import pytest
import torch
from families import POSITIONS, WINDOW
from sidebyside import assert_falls_back, augmented
from tiny import own_llama, tiny_model, words
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    GenerationConfig,
    PreTrainedModel,
    StaticCache,
)
from transformers.cache_utils import DynamicLayer, QuantizedLayer
from transformers.masking_utils import eager_mask
from transformers.models.llama.modeling_llama import eager_attention_forward
from unbranchable import SWITCH, UNBRANCHABLE, Unbranchable

import lade
from lade.entry import fallback
from lade.target.call import Call

GREEDY = {"do_sample": False, "max_new_tokens": SWITCH - 8}  # one beyond the switch, behind prompts of 9
BY_NAME = families.BY_NAME | {family.name: family for family in UNBRANCHABLE}
KINDS = [
    pytest.param(family, attention, id=f"{family.name}-{attention}")
    for family in UNBRANCHABLE
    for attention in family.attention
]
Inputs = Callable[[], dict[str, Any]]  # made anew for every call: caches are used up


def tiny_llama(attention: str = "sdpa") -> PreTrainedModel:
    return tiny_model(BY_NAME["llama"], attention)


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("USE_LADE", raising=False)


# What the model is


@pytest.mark.parametrize(("kind", "attention"), KINDS)
def test_unbranchable_models(kind: Unbranchable, attention: str) -> None:
    assert_falls_back(tiny_model(kind, attention), lambda: words(5, 9, 3) | GREEDY, kind.reason)


@pytest.mark.parametrize("name", ["phi3-longrope", "llama-dynamic"])
def test_rope_switch_out_of_reach(name: str) -> None:
    model = tiny_model(BY_NAME[name], "sdpa")
    kwargs = words(9) | GREEDY | {"max_new_tokens": SWITCH - 9}
    expected = model.generate(**kwargs)
    assert lade.generate(model, **kwargs).tolist() == expected.tolist()
    assert lade.last_stats().fallback is None


@pytest.mark.parametrize("name", ["phi3-longrope", "llama-dynamic"])
def test_rope_switch_one_token_on(name: str) -> None:
    kwargs = GREEDY | {"max_new_tokens": SWITCH - 9 + 1}
    assert_falls_back(tiny_model(BY_NAME[name], "sdpa"), lambda: words(9) | kwargs, BY_NAME[name].reason)


@pytest.mark.parametrize("name", ["phi3-longrope", "llama-dynamic"])
def test_rope_switch_behind_a_cache(name: str) -> None:
    """What the cache holds counts, though it is not among `input_ids`."""
    model, held = tiny_model(BY_NAME[name], "sdpa"), SWITCH - 12

    def inputs() -> dict[str, Any]:
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(**words(held), past_key_values=cache)
        return words(3) | {"attention_mask": torch.ones(1, held + 3, dtype=torch.long), "past_key_values": cache}

    assert_falls_back(model, lambda: inputs() | GREEDY | {"max_new_tokens": 10}, BY_NAME[name].reason)


def test_other_attention() -> None:
    """Stock flash attention takes a tree for packed sequences, silently: only what ours replaces is trusted."""
    AttentionInterface.register("homemade", eager_attention_forward)
    AttentionMaskInterface.register("homemade", eager_mask)
    model = tiny_model(replace(BY_NAME["llama"], name="llama-homemade"), "homemade")
    assert_falls_back(model, lambda: words(9) | GREEDY, "homemade")


# What the call asks for

REQUESTS: dict[str, tuple[Inputs, str]] = {
    "output_attentions": (
        lambda: words(9) | {"output_attentions": True, "return_dict_in_generate": True},
        "output_attentions",
    ),
    "output_hidden_states": (
        lambda: words(9) | {"output_hidden_states": True, "return_dict_in_generate": True},
        "output_hidden_states",
    ),
    "use_cache": (lambda: words(9) | {"use_cache": False}, "use_cache"),
}


@pytest.mark.parametrize(("inputs", "reason"), REQUESTS.values(), ids=REQUESTS)
def test_unbranchable_requests(inputs: Inputs, reason: str) -> None:
    assert_falls_back(tiny_llama("eager"), lambda: inputs() | GREEDY, reason)


def test_more_model_inputs() -> None:
    """As multimodal models take: what an unknown input means at a later position, only the model knows."""
    inputs = words(9) | {"token_type_ids": torch.full((1, 9), 5)} | GREEDY
    assert_falls_back(tiny_model(BY_NAME["gpt2"], "sdpa"), lambda: dict(inputs), "token_type_ids")


def test_synced_gpus(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert_falls_back(tiny_llama(), lambda: words(9) | GREEDY | {"synced_gpus": True}, "synced_gpus")
    finally:
        torch.distributed.destroy_process_group()


class PackedLayer(QuantizedLayer):
    """A quantised layer without a quantisation library behind it."""

    def __init__(self) -> None:
        DynamicLayer.__init__(self)

    def _quantize(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return tensor

    def _dequantize(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def update(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return DynamicLayer.update(self, *args, **kwargs)

    def get_seq_length(self) -> int:
        return DynamicLayer.get_seq_length(self)


def static(name: str, tokens: int) -> dict[str, Any]:
    return {"past_key_values": StaticCache(tiny_model(BY_NAME[name], "sdpa").config, max_cache_len=tokens)}


@pytest.mark.parametrize("name", ["mistral-sliding", "gemma3", "llama4"])
def test_a_static_window_that_rolls(name: str) -> None:
    """It holds WINDOW tokens, and drops one with each that follows."""
    model = tiny_model(BY_NAME[name], "sdpa")
    size = {"do_sample": False, "max_new_tokens": WINDOW + 2 - 5}
    assert_falls_back(model, lambda: words(5) | size | static(name, POSITIONS), f"window of {WINDOW} tokens")


def test_a_static_cache_that_the_text_outgrows() -> None:
    """Plain decoding raises an error of its own, unless the text ends early."""
    inputs = {"do_sample": False, "max_new_tokens": 12}
    with pytest.raises((IndexError, RuntimeError)) as plain:
        tiny_llama().generate(**words(9), **inputs, **static("llama", 19))
    with (
        pytest.warns(lade.FallbackWarning, match="may outgrow a static cache of 19 tokens"),
        pytest.raises(plain.type, match=re.escape(str(plain.value))),
    ):
        lade.generate(tiny_llama(), **words(9), **inputs, **static("llama", 19))
    end = int(tiny_llama().generate(**words(9), **inputs)[0, 12])
    assert_falls_back(
        tiny_llama(), lambda: words(9) | inputs | static("llama", 19) | {"eos_token_id": end}, "may outgrow"
    )


def test_a_static_cache_of_other_rows() -> None:
    cache = static("llama", POSITIONS)["past_key_values"]
    ids = words(9, 9)["input_ids"]
    tiny_llama()(ids, past_key_values=cache)
    cache.reset()
    with (
        pytest.warns(lade.FallbackWarning, match="another number of rows"),
        pytest.raises((IndexError, RuntimeError)),
    ):
        lade.generate(tiny_llama(), **words(9), **GREEDY, past_key_values=cache)


def test_quantised_cache() -> None:
    def inputs() -> dict[str, Any]:
        cache = DynamicCache(config=tiny_llama().config)
        cache.layers = [PackedLayer() for _ in cache.layers]
        return words(9) | GREEDY | {"past_key_values": cache}

    assert_falls_back(tiny_llama(), inputs, "packedlayer")


def test_offloaded_cache() -> None:
    def inputs() -> dict[str, Any]:
        cache = DynamicCache(config=tiny_llama().config)
        cache.offloading = True  # what needs a device is not reached: nothing is moved
        cache.update = lambda key, value, layer, *args, **kwargs: cache.layers[layer].update(key, value)
        return words(9) | GREEDY | {"past_key_values": cache}

    assert_falls_back(tiny_llama(), inputs, "offload")


class Elsewhere(torch.Tensor):
    """Ids that say that they are on another device."""

    device = torch.device("mps")


@pytest.mark.parametrize(("sampled", "reason"), [(False, None), (True, "sampling on a device of type 'mps'")])
def test_sampling_where_draws_are_not_known(sampled: bool, reason: str | None) -> None:
    """No Apple device is needed to see that its generator is never asked: decided before any work."""
    model = tiny_llama()
    ids = words(9)["input_ids"].as_subclass(Elsewhere)
    config = GenerationConfig(do_sample=sampled, output_attentions=False, output_hidden_states=False, use_cache=True)
    config.is_assistant = False
    inputs = {"past_key_values": DynamicCache(config=model.config)}
    call = Call(model, ids, [], [], config, False, inputs)
    found = fallback.reason_for_plain(call, lambda model, rows: None, call.input_ids.shape[0])
    assert found is None if reason is None else (found or "").startswith(reason)


# What is left to transformers

UNTOUCHED: dict[str, Inputs] = {
    "beams": lambda: {"num_beams": 3, "do_sample": False},
    "sampled beams": lambda: {"num_beams": 3, "do_sample": True, "num_return_sequences": 2},
    "assisted": lambda: {"prompt_lookup_num_tokens": 3, "do_sample": False},
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_untouched_methods(name: str) -> None:
    """Without a warning; the statistics are not those of the call before."""
    kwargs = words(9) | UNTOUCHED[name]() | {"max_new_tokens": 16}
    torch.manual_seed(0)
    expected = tiny_llama().generate(**kwargs)
    before = len(lade.log_history())
    torch.manual_seed(0)
    with augmented():
        text = tiny_llama().generate(**kwargs)
    assert text.tolist() == expected.tolist()
    (stats,) = lade.log_history()[before:]
    assert lade.last_stats() is stats
    assert (stats.rows, stats.new_tokens, stats.steps) == (len(text), 16 * len(text), 0)
    assert stats.fallback == f"{'assisted decoding' if name == 'assisted' else 'beam search'} is left to transformers"


@pytest.mark.filterwarnings("ignore:Passing `generation_config` together with")
def test_assistants() -> None:
    """An assistant's own calls do reach the patch, many of them in one call of the user: one warning, and the
    statistics of that call alone."""
    model, assistant = tiny_llama(), copy.deepcopy(tiny_model(BY_NAME["mistral"], "sdpa"))
    kwargs = words(9) | GREEDY | {"assistant_model": assistant}
    expected = model.generate(**kwargs)
    before = len(lade.log_history())
    with augmented(), pytest.warns(lade.FallbackWarning, match="assistant") as caught:
        text = model.generate(**kwargs)
    assert text.tolist() == expected.tolist()
    assert len(caught) == 1
    assert [stats.fallback for stats in lade.log_history()[before:]] == ["assisted decoding is left to transformers"]


@pytest.mark.parametrize("name", ["mistral-sliding", "gemma3", "llama4"])
@pytest.mark.parametrize("lengths", [(9,), (9, 4)], ids=str)
def test_a_window_of_one_token(name: str, lengths: tuple[int, ...]) -> None:
    """transformers' cache keeps all tokens there and masks none: what plain decoding makes of it is the text."""
    family = BY_NAME[name]
    size = "attention_chunk_size" if name == "llama4" else "sliding_window"
    model = tiny_model(replace(family, name=f"{name} of one", config=family.config | {size: 1}))
    assert_falls_back(model, lambda: words(*lengths) | GREEDY, "sliding window of one token")


def test_max_time_in_a_batch() -> None:
    """Plain decoding asks for the time once per token of all rows, so that they end together."""
    assert_falls_back(tiny_llama(), lambda: words(9, 5) | GREEDY | {"max_time": 3600.0}, "max_time")


def test_a_cache_that_records_its_past() -> None:
    model = tiny_model(BY_NAME["mistral-sliding"], "sdpa")

    def inputs() -> dict[str, Any]:
        cache = DynamicCache(config=model.config)
        cache.activate_past_recording()
        return words(9) | GREEDY | {"past_key_values": cache}

    assert_falls_back(model, inputs, "records its past")
    with lade.Engine(model) as engine, pytest.raises(ValueError, match="records its past"):
        engine.submit(**inputs())


def test_gradients() -> None:
    """`generate` without its decorator, as those call it who train through it."""
    generate = type(tiny_llama()).generate.__wrapped__
    asked = words(9) | GREEDY | {"max_new_tokens": 4, "output_scores": True, "return_dict_in_generate": True}
    with augmented(), pytest.warns(lade.FallbackWarning, match="gradients"):
        found = generate(tiny_llama(), **asked).scores
    assert found[-1].requires_grad


def test_offloaded_models() -> None:
    model = own_llama()
    accelerate = pytest.importorskip("accelerate")
    accelerate.cpu_offload(model, execution_device="cpu")
    assert_falls_back(model, lambda: words(9) | GREEDY, "offloaded")
    with pytest.raises(ValueError, match="model must be on a device, not offloaded"):
        lade.Engine(model)
    with pytest.raises(ValueError, match="model must hold its weights, got some on the meta device or offloaded"):
        lade.warm_up(model)
    lade.pack_weights(model)
    assert_falls_back(model, lambda: words(9) | GREEDY, "offloaded")


def test_padding_is_no_new_token() -> None:
    """As with lookahead: a row's tokens up to its end."""
    inputs = words(9, 9, 5) | {"do_sample": False, "max_new_tokens": 12}
    end = int(tiny_llama().generate(**inputs)[0, 9 + 3])
    counts = []
    for plainly in (False, True):
        with augmented(), warnings.catch_warnings():
            warnings.simplefilter("ignore", lade.FallbackWarning)
            more = {"output_attentions": True, "return_dict_in_generate": True} if plainly else {}
            tiny_llama("eager").generate(**inputs, eos_token_id=end, **more)
        counts.append(lade.last_stats().new_tokens)
    assert counts[0] == counts[1] < 36


def test_cross_attention_to_a_cached_image() -> None:
    model = tiny_llama()
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(words(5)["input_ids"], past_key_values=cache)
    config = copy.deepcopy(model.config)
    config.cross_attention_layers = [1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "config", config)
        assert_falls_back(
            model, lambda: words(9) | GREEDY | {"past_key_values": copy.deepcopy(cache)}, "cross-attention to an image"
        )
