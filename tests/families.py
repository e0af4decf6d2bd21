"""The families that the engine claims, one row each: how to configure a tiny model of it.

Knows which attention implementations transformers accepts for a family; `tiny` builds the models.
"""

from dataclasses import dataclass, field
from typing import Any

VOCAB, PAD = 64, 0
LAYERS, HEADS, HIDDEN = 2, 4, 32
WINDOW = 8  # tokens of a sliding or chunked attention layer
POSITIONS = 256

COMMON = {"vocab_size": VOCAB, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
LLAMA = COMMON | {
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
}
GPT2 = COMMON | {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": POSITIONS}
BERT_NAMES = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
OPT = {k: v for k, v in BERT_NAMES.items() if k != "intermediate_size"} | {
    "ffn_dim": 2 * HIDDEN,
    "word_embed_proj_dim": HIDDEN,
}
NEO = COMMON | {"hidden_size": HIDDEN, "num_layers": 2, "num_heads": HEADS, "max_position_embeddings": POSITIONS}
XGLM = COMMON | {
    "d_model": HIDDEN,
    "ffn_dim": 64,
    "num_layers": 2,
    "attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
}
FALCON = {k: v for k, v in BERT_NAMES.items() if k != "intermediate_size"} | {"alibi": False}
HEAD8 = {"head_dim": 8}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
SLIDING_THEN_FULL = ["sliding_attention", "full_attention"]
MLA = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
DEEPSEEK = {
    "num_key_value_heads": HEADS,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
BOTH, EAGER = ("eager", "sdpa"), ("eager",)


@dataclass(frozen=True)
class Family:
    """One kind of model: its configuration, and the attention implementations that transformers accepts for it."""

    name: str
    model_type: str
    config: dict[str, Any] = field(hash=False)
    attention: tuple[str, ...] = BOTH
    float64: bool = True  # whether transformers itself runs it in float64
    seed: int = 0


def _sliding(**layers: Any) -> dict[str, Any]:
    return {"sliding_window": WINDOW} | layers


BRANCHABLE = (
    Family("llama", "llama", LLAMA),
    Family("mistral", "mistral", LLAMA | {"sliding_window": None}),
    Family("mistral-sliding", "mistral", LLAMA | _sliding()),
    Family("qwen2", "qwen2", LLAMA),
    Family("qwen2-sliding", "qwen2", LLAMA | _sliding(use_sliding_window=True, max_window_layers=1)),
    Family("qwen3", "qwen3", LLAMA | HEAD8),
    Family("qwen3_moe", "qwen3_moe", LLAMA | HEAD8 | MOE),
    Family("qwen2_moe", "qwen2_moe", LLAMA | MOE | {"shared_expert_intermediate_size": 32}),
    Family("gemma", "gemma", LLAMA | HEAD8),
    Family("gemma2", "gemma2", LLAMA | HEAD8 | _sliding(layer_types=SLIDING_THEN_FULL), EAGER),
    Family("gemma3", "gemma3_text", LLAMA | HEAD8 | _sliding(layer_types=SLIDING_THEN_FULL)),
    Family(
        "gemma4",
        "gemma4_text",
        LLAMA
        | HEAD8
        | _sliding(
            layer_types=SLIDING_THEN_FULL * 2,
            num_hidden_layers=4,
            num_kv_shared_layers=2,
            vocab_size_per_layer_input=VOCAB,
            hidden_size_per_layer_input=8,
        ),
    ),
    Family("phi", "phi", LLAMA),
    Family("phi3", "phi3", LLAMA),
    Family("phi3-sliding", "phi3", LLAMA | _sliding()),
    Family("gpt2", "gpt2", GPT2),
    Family("gptj", "gptj", GPT2 | {"rotary_dim": 4}, EAGER),
    Family("gpt_neo", "gpt_neo", NEO | {"attention_types": [[["global"], 2]]}, EAGER),
    Family("gpt_neox", "gpt_neox", BERT_NAMES),
    Family("codegen", "codegen", GPT2 | {"n_ctx": POSITIONS, "rotary_dim": 4}, EAGER),
    Family("gpt_bigcode", "gpt_bigcode", GPT2),
    Family("opt", "opt", OPT),
    Family("xglm", "xglm", XGLM, EAGER, float64=False),
    Family("biogpt", "biogpt", BERT_NAMES),
    Family("persimmon", "persimmon", BERT_NAMES),
    Family("falcon", "falcon", FALCON),
    Family("falcon-new", "falcon", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    Family("mixtral", "mixtral", LLAMA | LOCAL_MOE),
    Family("gpt_oss", "gpt_oss", LLAMA | HEAD8 | LOCAL_MOE | _sliding(layer_types=SLIDING_THEN_FULL), EAGER),
    Family("smollm3", "smollm3", LLAMA | {"no_rope_layer_interval": 2}),
    Family("olmo2", "olmo2", LLAMA),
    Family("olmo3", "olmo3", LLAMA | _sliding(layer_types=SLIDING_THEN_FULL)),
    Family("cohere2", "cohere2", LLAMA | _sliding(layer_types=SLIDING_THEN_FULL)),
    Family("starcoder2", "starcoder2", LLAMA | _sliding()),
    Family("granite", "granite", LLAMA),
    Family("stablelm", "stablelm", LLAMA),
    Family("exaone4", "exaone4", LLAMA | _sliding(layer_types=SLIDING_THEN_FULL)),
    Family(
        "llama4",
        "llama4_text",
        LLAMA
        | HEAD8
        | LOCAL_MOE
        | {
            "intermediate_size_mlp": 64,
            "attention_chunk_size": WINDOW,
            "layer_types": ["chunked_attention", "full_attention"],
            "no_rope_layers": [1, 0],
        },
    ),
    Family("deepseek_v3", "deepseek_v3", LLAMA | MOE | MLA | DEEPSEEK),
    Family("seed_oss", "seed_oss", LLAMA | HEAD8),
    Family("minimax_m2", "minimax_m2", LLAMA | HEAD8 | LOCAL_MOE),
    Family("nemotron", "nemotron", LLAMA),
    Family("glm4", "glm4", LLAMA | HEAD8),
    Family("ministral3", "ministral3", LLAMA | HEAD8),
    Family("hunyuan", "hunyuan_v1_dense", LLAMA | HEAD8),
    Family("ernie4_5", "ernie4_5", LLAMA | HEAD8),
    Family("apertus", "apertus", LLAMA),
)

BY_NAME = {family.name: family for family in BRANCHABLE}

# Names of families with attention of many kinds, for tests of every way of attention.
PACKED = (
    "llama",
    "mistral-sliding",
    "qwen2",
    "qwen3_moe",
    "gemma3",
    "phi3-sliding",
    "gpt2",
    "opt",
    "olmo3",
    "starcoder2",
    "glm4",
)
