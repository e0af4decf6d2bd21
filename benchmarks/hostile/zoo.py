"""Tiny models of transformers' list of causal models, built by shrinking the sizes in the configuration.

Knows names of configuration fields and no family.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from families import PAD, POSITIONS, VOCAB, WINDOW, Family
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

PARAMETERS = 3_000_000  # of a tiny model, at most
TIES = {"tie_word_embeddings": False, "is_decoder": True, "is_encoder_decoder": False, "add_cross_attention": False}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": PAD}
LAYERS = dict.fromkeys(
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers", "num_blocks"), 2
)
HEADS = dict.fromkeys(
    (
        *("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"),
        *("encoder_attention_heads", "attention_heads"),
    ),
    4,
)
WIDTHS = dict.fromkeys(("hidden_size", "n_embd", "d_model", "emb_dim", "embedding_dim", "dim_model"), 32)
EMBEDDINGS = dict.fromkeys(
    ("embedding_size", "word_embed_proj_dim", "input_embedding_size", "output_embedding_size"), 32
)
FEED_FORWARDS = dict.fromkeys(
    (
        *("intermediate_size", "decoder_ffn_dim", "encoder_ffn_dim", "ffn_dim", "d_inner", "dff", "dim_ff"),
        *("shared_intermediate_size", "intermediate_size_mlp", "ffn_hidden_size", "feed_forward_size"),
        *("dense_intermediate_size", "shared_experts_intermediate_size", "hidden_size_per_layer_input"),
    ),
    64,
)
HEAD_SIZES = dict.fromkeys(("head_dim", "d_kv", "d_head", "attention_head_dim", "dim_head", "kv_channels"), 8)
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "o_lora_rank": 16} | dict.fromkeys(
    ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "index_head_dim", "linear_key_head_dim"), 8
)
EXPERTS = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "n_shared_experts"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32),
}
STATES = {
    "mamba_d_state": 4,
    "state_size": 4,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_expand": 2,
    "expand": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
    "index_n_heads": 2,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 4,
    "mamba_n_groups": 1,
    "n_groups": 1,
}
ENDS = dict.fromkeys(
    ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length", "model_max_length"), POSITIONS
)
WINDOWS = dict.fromkeys(
    ("sliding_window", "sliding_window_size", "attention_chunk_size", "attention_window_size", "window_size"), WINDOW
)
VOCABULARIES = dict.fromkeys(("vocab_size", "decoder_vocab_size", "vocab_size_per_layer_input"), VOCAB)
SMALL = (
    *(VOCABULARIES, TIES, TOKENS, LAYERS, HEADS, WIDTHS, EMBEDDINGS, FEED_FORWARDS, HEAD_SIZES, LATENT, EXPERTS),
    *(STATES, ENDS, WINDOWS, {"num_key_value_heads": 2, "rotary_dim": 4, "index_topk": 4, "num_kv_heads": 2}),
)
SIZES: dict[str, Any] = {name: value for group in SMALL for name, value in group.items()}
ALWAYS = ("head_dim", "num_experts_per_tok")  # set even if the default is None
SPECIAL: dict[str, dict[str, Any]] = {  # not covered by the names
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
}
# Lists with one entry per layer; the first entries are kept.
PER_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers", "indexer_types", "block_types")


def names() -> list[str]:
    """The model types that transformers lists as causal language models."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


@cache
def small(name: str, **config: Any) -> dict[str, Any]:
    """Arguments of a small configuration of the model type: every known size is reduced.

    Raises:
        Exception: from the configuration's own checks.
    """
    return _shrunk(CONFIG_MAPPING[name]().to_dict()) | SPECIAL.get(name, {}) | config


def _shrunk(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of a configuration that must change, with their new values."""
    small: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and "model_type" in value:
            small[name] = _shrunk(value) | SPECIAL.get(value["model_type"], {}) | {"model_type": value["model_type"]}
        elif name in PER_LAYER and isinstance(value, list):
            small[name] = _spread(value, LAYERS["num_hidden_layers"])
        elif name in SIZES and (value is not None or name in ALWAYS):
            small[name] = copy.copy(SIZES[name])
    if "kv_lora_rank" in config:  # every head has its own keys
        small |= {"num_key_value_heads": HEADS["num_attention_heads"]} | (
            {"qk_head_dim": 16} if "qk_head_dim" in config else {}
        )
    return small


def _spread(kinds: list[Any], layers: int) -> list[Any]:
    """One entry per layer, with as many different kinds as possible."""
    different = list(dict.fromkeys(kinds))[:layers]
    return (different + kinds[: layers - len(different)])[:layers]


def check_size(family: Family) -> None:
    """ValueError for a model with too many parameters."""
    config = AutoConfig.for_model(family.model_type, **family.config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    found = sum(parameter.numel() for parameter in model.parameters())
    if found > PARAMETERS:
        raise ValueError(f"parameters must be at most {PARAMETERS}, got {found}")
