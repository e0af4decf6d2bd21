"""The kinds of model that no token tree fits: they must decode plainly, with a warning that gives the reason.

Knows the word that the warning must hold; `tiny` builds the models.
"""

from dataclasses import dataclass

from families import (
    COMMON,
    DEEPSEEK,
    EAGER,
    FALCON,
    HEAD8,
    HIDDEN,
    LAYERS,
    LLAMA,
    MLA,
    MOE,
    NEO,
    PAD,
    POSITIONS,
    VOCAB,
    WINDOW,
    Family,
)


@dataclass(frozen=True)
class Unbranchable(Family):
    """A kind of model that must decode plainly; `reason` is a word of the warning that says why."""

    reason: str = ""


SWITCH = 32  # the position where a rotary embedding changes over

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": SWITCH,
    "factor": 8.0,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
MAMBA = COMMON | {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "state_size": 4}
T5 = {
    "vocab_size": VOCAB,
    "d_model": HIDDEN,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}

# Those with a switch inside POSITIONS are unbranchable only where prompt and new tokens together cross it.
UNBRANCHABLE = (
    Unbranchable("falcon-alibi", "falcon", FALCON | {"alibi": True}, reason="alibi"),
    Unbranchable("bloom", "bloom", COMMON | {"hidden_size": HIDDEN, "n_layer": 2, "n_head": 4}, EAGER, reason="alibi"),
    Unbranchable(
        "mpt",
        "mpt",
        COMMON | {"d_model": HIDDEN, "n_heads": 4, "n_layers": 2, "max_seq_len": POSITIONS, "use_cache": True},
        EAGER,
        reason="alibi",
    ),
    Unbranchable(
        "gpt_neo-local",
        "gpt_neo",
        NEO | {"attention_types": [[["global", "local"], 1]], "window_size": WINDOW},
        EAGER,
        reason="local",
    ),
    Unbranchable("mamba", "mamba", MAMBA, EAGER, reason="linear_attention"),
    Unbranchable(
        "jamba",
        "jamba",
        LLAMA
        | {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "mamba_d_state": 4,
            "use_mamba_kernels": False,
        },
        reason="linear_attention",
    ),
    Unbranchable(
        "qwen3_next",
        "qwen3_next",
        LLAMA
        | HEAD8
        | MOE
        | {
            "layer_types": ["linear_attention", "full_attention"],
            "shared_expert_intermediate_size": 32,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
        reason="linear_attention",
    ),
    Unbranchable("lfm2", "lfm2", LLAMA | {"layer_types": ["conv", "full_attention"]}, reason="conv"),
    Unbranchable(
        "glm_moe_dsa",
        "glm_moe_dsa",
        LLAMA
        | MOE
        | MLA
        | DEEPSEEK
        | {"n_group": 1, "index_topk": 4, "index_head_dim": 8, "index_n_heads": 2, "head_dim": 8},
        reason="indexe",
    ),
    Unbranchable(
        "phi3-longrope",
        "phi3",
        LLAMA | {"rope_parameters": LONGROPE, "original_max_position_embeddings": SWITCH},
        reason="rotary",
    ),
    Unbranchable(
        "llama-dynamic",
        "llama",
        LLAMA | {"rope_parameters": DYNAMIC, "max_position_embeddings": SWITCH},
        reason="rotary",
    ),
    Unbranchable("t5", "t5", T5 | {"pad_token_id": PAD, "eos_token_id": 2}, reason="encoder-decoder"),
)
