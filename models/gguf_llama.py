"""Converts a LLaMA in a GGUF file into a folder that transformers loads: weights, configuration and tokenizer.

Needs the package `gguf`; format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Knows no model by name.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lade.base.importing import IMPORTING

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import LlamaConfig, PreTrainedTokenizerBase

INSTALL = "pip install 'lade-decoding[gguf]'"
MODULES = {  # of a layer, by its name in GGUF
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
TOKENIZERS = {("gpt2", "smollm")}  # kinds and pre-tokenizers that are built here
SPECIAL = 3  # type of a special token

Progress = Callable[[int, int], object]


def check_gguf() -> None:
    """ImportError, which says how to install it, where the package `gguf` is missing."""
    if find_spec("gguf") is None:
        raise ImportError(f"a GGUF file needs the package gguf: {INSTALL}")


def convert(file: Path, folder: Path, progress: Progress = lambda done, total: None) -> None:
    """Write the model in `file` into `folder`, with weights in bfloat16.

    Args:
        progress: called with the numbers of tensors done and in all.

    Raises:
        ImportError: `gguf` is missing.
        ValueError: the file is no GGUF file, or its model is no LLaMA with a tokenizer known here.
    """
    check_gguf()
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
        facts = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise ValueError(f"{file.name} is not a GGUF file ({error})") from error
    try:
        config = _config(facts, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
        _tokenizer(facts).save_pretrained(folder)
    except KeyError as error:
        raise ValueError(f"{file.name} must have the field {error}") from error
    _save(config, _state(reader.tensors, config, progress), folder)


def _config(facts: dict[str, Any], tied: bool) -> LlamaConfig:
    with IMPORTING:
        from transformers import LlamaConfig

    if facts["general.architecture"] != "llama":
        raise ValueError(f"the architecture must be llama, got {facts['general.architecture']}")
    heads = facts["llama.attention.head_count"]
    return LlamaConfig(
        vocab_size=len(facts["tokenizer.ggml.tokens"]),
        hidden_size=facts["llama.embedding_length"],
        intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=facts.get("llama.attention.head_count_kv", heads),
        head_dim=facts.get("llama.rope.dimension_count", facts["llama.embedding_length"] // heads),
        max_position_embeddings=facts["llama.context_length"],
        rms_norm_eps=facts["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": facts.get("llama.rope.freq_base", 10000.0)},
        tie_word_embeddings=tied,
        bos_token_id=facts["tokenizer.ggml.bos_token_id"],
        eos_token_id=facts["tokenizer.ggml.eos_token_id"],
        pad_token_id=facts.get("tokenizer.ggml.padding_token_id", facts["tokenizer.ggml.eos_token_id"]),
    )


def _tokenizer(facts: dict[str, Any]) -> PreTrainedTokenizerBase:
    with IMPORTING:
        from transformers import PreTrainedTokenizerFast

    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = facts["tokenizer.ggml.model"], facts["tokenizer.ggml.pre"]
    if kind not in TOKENIZERS:
        raise ValueError(f"the tokenizer and pre-tokenizer must be {' or '.join(map(str, TOKENIZERS))}, got {kind}")
    tokens, types = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: id_ for id_, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, type_ in zip(tokens, types, strict=True) if type_ == SPECIAL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    ids = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    named = {f"{ours}_token": facts.get(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in ids.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{name: tokens[id_] for name, id_ in named.items() if id_ is not None},
        chat_template=facts.get("tokenizer.chat_template"),
        model_max_length=facts["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )


def _state(tensors: list[Any], config: LlamaConfig, progress: Progress) -> dict[str, Tensor]:
    import torch
    from gguf import dequantize

    state = {}
    for done, tensor in enumerate(tensors, 1):
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        state[_name(tensor.name)] = _in_half_split_order(weight, tensor.name, config).to(torch.bfloat16)
        progress(done, len(tensors))
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state


def _name(name: str) -> str:
    """The weight's name in transformers: `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`."""
    if name in TOP:
        return TOP[name]
    try:
        _, layer, module, kind = name.split(".")
        return f"model.layers.{layer}.{MODULES[module]}.{kind}"
    except (ValueError, KeyError):
        raise ValueError(f"the tensors must be those of a LLaMA, got {name}") from None


def _in_half_split_order(weight: Tensor, name: str, config: LlamaConfig) -> Tensor:
    """Rows of a query or key projection: GGUF interleaves the two halves of a head that RoPE rotates as pairs."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return weight
    return weight.view(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _save(config: LlamaConfig, state: dict[str, Tensor], folder: Path) -> None:
    import torch

    with IMPORTING:
        from transformers import GenerationConfig, LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    try:
        model.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise ValueError(f"the tensors must be those of the configuration: {error}") from error
    model.tie_weights()
    model.generation_config = GenerationConfig.from_model_config(config)
    model.save_pretrained(folder)
