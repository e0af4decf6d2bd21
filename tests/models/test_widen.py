"""Widening changes sizes and nothing else."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from lade.models import load
from lade.models.widen import logit_difference, own_sizes, widen

pytestmark = pytest.mark.usefixtures("one_thread")

WIDE: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_layers": 7,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 16,
    "vocab_size": 700,
    "max_position_embeddings": 1024,
}


@pytest.fixture(scope="module")
def story() -> tuple[PreTrainedModel, Tensor]:
    model, tokenizer = load("stories260K")
    return model, tokenizer("Once upon a time, there was a little dog who", return_tensors="pt").input_ids


@torch.no_grad()
def difference(model: PreTrainedModel, wide: PreTrainedModel, ids: Tensor) -> float:
    return float((model(ids).logits - wide(ids).logits[..., : model.config.vocab_size]).abs().max())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 4},  # several query heads at one kv head: fewer copies than heads
        {"num_attention_heads": 8, "num_key_value_heads": 4},
        {"head_dim": 8},
        {"head_dim": 32},
        {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 8, "num_layers": 5, "vocab_size": 512},
    ],
)
def test_logits_and_greedy_text_stay(story: tuple[PreTrainedModel, Tensor], changes: dict[str, int]) -> None:
    model, ids = story
    wide = widen(model, **WIDE | changes)
    assert own_sizes(wide) == WIDE | changes
    assert wide.get_output_embeddings().weight.shape == (wide.config.vocab_size, wide.config.hidden_size)
    assert difference(model, wide, ids) < 1e-4
    text = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    assert torch.equal(wide.generate(ids, **text), model.generate(ids, **text))


@pytest.fixture(scope="module")
def grouped() -> LlamaForCausalLM:
    """Nine query heads, three key-value heads, tied embeddings, as SmolLM2 has."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=72, intermediate_size=96, num_hidden_layers=3, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=128, max_position_embeddings=64, initializer_range=0.2, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


HEADS = [(9, 3, 16), (9, 9, 8), (10, 10, 8), (12, 12, 8), (16, 4, 8), (18, 6, 24), (32, 4, 8)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "dtype"),
    [(*heads, torch.float32) for heads in HEADS] + [(*heads, torch.bfloat16) for heads in HEADS[::3]],
    ids=str,
)
def test_nine_query_and_three_key_value_heads(
    heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, grouped: LlamaForCausalLM
) -> None:
    model = copy.deepcopy(grouped).to(dtype)
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    wide = widen(model, **sizes, hidden_size=heads * 8)
    found = logit_difference(model, wide)
    assert found < (1e-4 if dtype is torch.float32 else 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weight", ["q_proj", "k_proj", "v_proj"])
def test_heads_in_another_order_are_seen(weight: str, dtype: torch.dtype, grouped: LlamaForCausalLM) -> None:
    model = copy.deepcopy(grouped).to(dtype)
    wide = widen(model, num_attention_heads=18, num_key_value_heads=6, hidden_size=144)
    rows = getattr(wide.model.layers[1].self_attn, weight).weight
    rows.data[:16] = rows.data[:16].roll(8, 0)  # the first two heads
    with pytest.raises(ValueError, match=r"logits differ by .* on average, rounding explains"):
        logit_difference(model, wide)


def test_own_sizes_give_the_same_model_untied(story: tuple[PreTrainedModel, Tensor]) -> None:
    model, ids = story
    assert difference(model, widen(model, **own_sizes(model)), ids) < 1e-5


def test_biases_and_half_precision_are_kept() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, attention_bias=True, mlp_bias=True, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.arange(20)[None]
    wide = widen(model, **WIDE | {"max_position_embeddings": 2048})
    assert difference(model, wide, ids) < 1e-4
    assert wide.config._attn_implementation == "eager"
    assert widen(model.bfloat16(), **WIDE | {"max_position_embeddings": 2048}).dtype == torch.bfloat16


def test_extra_vocabulary_ties_with_token_0_behind_it(story: tuple[PreTrainedModel, Tensor]) -> None:
    model, ids = story
    logits = widen(model, **WIDE)(ids).logits[0, -1]
    assert torch.equal(logits[512:], logits[:1].expand(700 - 512))


def test_extra_layers_are_identities_with_weights_of_their_own(story: tuple[PreTrainedModel, Tensor]) -> None:
    model, _ = story
    layer = widen(model, **WIDE).model.layers[6]
    hidden = torch.randn(1, 3, 96)
    position = model.model.rotary_emb(hidden, torch.arange(3)[None])
    wide_position = tuple(torch.cat([part, part], dim=-1) for part in position)
    assert torch.equal(layer(hidden, position_embeddings=wide_position), hidden)
    assert len({weight.data_ptr() for weight in layer.parameters()}) == len(list(layer.parameters()))


def test_the_config_says_that_it_is_widened(story: tuple[PreTrainedModel, Tensor]) -> None:
    model, _ = story
    assert widen(model, **WIDE).config.lade_widened["hidden_size"] == 64
    assert model.config.hidden_size == 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 63}, "hidden_size must be at least 64, .*, got 63"),
        ({"num_layers": 4}, "num_layers must be at least 5, .*, got 4"),
        ({"vocab_size": True}, "vocab_size must be an integer, got True"),
        ({"intermediate_size": 180.5}, "intermediate_size must be an integer, got 180.5"),
        ({"head_dim": 12}, "head_dim must be a multiple of 8, .*, got 12"),
        ({"num_key_value_heads": 5}, "num_attention_heads must be a multiple of num_key_value_heads=5, got 12"),
        ({"hidden_size": 100}, "hidden_size must be a multiple of num_attention_heads=12, got 100"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "num_attention_heads must be at least 8, .*, got 5"),
        ({"max_position_embeddings": 0}, "max_position_embeddings must be at least 512, .*, got 0"),
    ],
)
def test_wrong_sizes_are_named(story: tuple[PreTrainedModel, Tensor], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        widen(story[0], **WIDE | changes)


def test_too_few_kv_heads_for_the_copies_are_refused() -> None:
    config = LlamaConfig(
        hidden_size=48, intermediate_size=48, num_hidden_layers=1, num_attention_heads=6, num_key_value_heads=2,
        head_dim=8, vocab_size=64,
    )  # fmt: skip
    sizes = WIDE | {"num_attention_heads": 6, "num_key_value_heads": 3}
    sizes["max_position_embeddings"] = config.max_position_embeddings
    with pytest.raises(ValueError, match=r"num_key_value_heads must be at least 4 .*, got 3"):
        widen(LlamaForCausalLM(config), **sizes)


@pytest.mark.parametrize("rope", ["dynamic", "yarn"])
def test_rope_that_depends_on_the_head_size_is_refused(rope: str) -> None:
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, vocab_size=64,
        rope_parameters={"rope_type": rope, "rope_theta": 10000.0, "factor": 2.0},
    )  # fmt: skip
    with pytest.raises(ValueError, match=f"model must be one with RoPE of type .*, got '{rope}'"):
        own_sizes(LlamaForCausalLM(config))


def test_other_models_are_refused() -> None:
    with pytest.raises(ValueError, match="model must be a LLaMA model, got 'gpt2'"):
        own_sizes(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16)))
