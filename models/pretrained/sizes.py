"""The sizes of the trained models, and a LLaMA of such a size with random weights.

Knows no data and no training.
"""

from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

POSITIONS = 2048
END, PAD = 0, 3  # ids of the tokenizer's special tokens


@dataclass(frozen=True)
class Size:
    """The widths and depth of a LLaMA with tied embeddings."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int


SIZES = {
    "target": Size(hidden=256, ffn=704, layers=8, heads=8, kv_heads=4),
    "draft": Size(hidden=128, ffn=352, layers=3, heads=4, kv_heads=2),
    "tiny": Size(hidden=32, ffn=64, layers=2, heads=2, kv_heads=1),
}


def fresh_model(name: str, vocabulary: int, seed: int = 0) -> LlamaForCausalLM:
    """A float32 model with random weights that depend on `seed` alone."""
    size = SIZES[name]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.ffn,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).float()
