"""GGUF files into folders for transformers, on tiny random LLaMAs: the same logits, tokens, chat template and ends."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from lade.models import gguf_llama, load
from lade.models.gguf_llama import convert

gguf = pytest.importorskip("gguf", reason="needs the package gguf")

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTES, "in", "Ġin", "ĠĠ", "1Ġ", "12", "Ċ"]
TOKENS = list(dict.fromkeys(TOKENS))
MERGES = ["i n", "Ġ in", "Ġ Ġ", "1 Ġ", "1 2"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def tiny(tied: bool) -> LlamaForCausalLM:
    """Three query heads to each key-value head, sizes in multiples of a block of Q4_1, weights that bfloat16 holds."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=96,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        rms_norm_eps=2.0**-17,  # float32 holds it
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        initializer_range=0.2,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()
    return model


def write(path: Path, model: LlamaForCausalLM, kind: Any = None, **changes: Any) -> None:
    """The model as llama.cpp's converter writes it. `changes`: methods of the writer and their arguments."""
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    given = {
        "add_block_count": config.num_hidden_layers,
        "add_context_length": config.max_position_embeddings,
        "add_embedding_length": config.hidden_size,
        "add_feed_forward_length": config.intermediate_size,
        "add_head_count": config.num_attention_heads,
        "add_head_count_kv": config.num_key_value_heads,
        "add_rope_dimension_count": config.head_dim,
        "add_rope_freq_base": 100.0,
        "add_layer_norm_rms_eps": config.rms_norm_eps,
        "add_tokenizer_model": "gpt2",
        "add_tokenizer_pre": "smollm",
        "add_token_list": TOKENS,
        "add_token_types": [3] * 3 + [1] * (len(TOKENS) - 3),
        "add_token_merges": MERGES,
        "add_bos_token_id": 1,
        "add_eos_token_id": 2,
        "add_unk_token_id": 0,
        "add_chat_template": TEMPLATE,
    }
    for name, value in (given | changes).items():
        if value is not None:
            getattr(writer, name)(value)
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight" or not config.tie_word_embeddings:
            add(writer, name, weight.numpy(), config, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer: Any, name: str, weight: np.ndarray, config: LlamaConfig, kind: Any) -> None:
    """llama.cpp permutes the rows of queries and keys as here (`LlamaModel.permute` of its converter)."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is not None:
        halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
        weight = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
    named = {theirs: ours for ours, theirs in gguf_llama.TOP.items()}.get(name)
    if named is None:
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        module = {theirs: ours for ours, theirs in gguf_llama.MODULES.items()}[rest.removesuffix(".weight")]
        named = f"blk.{layer}.{module}.weight"
    if kind is None or weight.ndim == 1:
        writer.add_tensor(named, weight)
    else:
        writer.add_tensor(named, gguf.quantize(weight, kind), raw_dtype=kind)


@pytest.mark.compat
@pytest.mark.parametrize("tied", [True, False])
def test_the_logits_are_the_original_s(tied: bool, tmp_path: Path) -> None:
    original = tiny(tied)
    write(tmp_path / "tiny.gguf", original)
    seen: list[tuple[int, int]] = []
    convert(tmp_path / "tiny.gguf", tmp_path / "out", lambda *at: seen.append(at))
    found, _ = load(tmp_path / "out", dtype="float32")
    ids = torch.arange(40)[None]
    assert torch.equal(found(ids).logits, original(ids).logits)
    total = 2 + 9 * 2 + (not tied)
    assert seen == [(done, total) for done in range(1, total + 1)]
    assert load(tmp_path / "out")[0].dtype is torch.bfloat16


@pytest.mark.parametrize(("kind", "bits"), [("Q4_1", 4), ("Q8_0", 8)])
def test_quantised_weights_are_near(kind: str, bits: int, tmp_path: Path) -> None:
    original = tiny(tied=True)
    write(tmp_path / "tiny.gguf", original, gguf.GGMLQuantizationType[kind])
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    found = load(tmp_path / "out")[0].state_dict()
    for name, weight in original.state_dict().items():
        step = (weight.max() - weight.min()) / 2**bits
        assert (found[name].float() - weight).abs().max() <= step, name


def test_the_tokenizer_splits_digits_and_keeps_special_tokens(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf", tiny(tied=True))
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    model, tokenizer = load(tmp_path / "out")

    def pieces(text: str) -> list[str]:
        return tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)

    assert pieces("in  12 in") == ["in", "ĠĠ", "1", "2", "Ġin"]
    assert pieces("<|im_start|>in<|im_end|>") == ["<|im_start|>", "in", "<|im_end|>"]
    text = "  12é in\n<3 ∞"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "in"}], tokenize=False)
    assert chat == "<|im_start|>in<|im_end|>"
    assert model.generation_config.eos_token_id == model.generation_config.pad_token_id == tokenizer.eos_token_id == 2
    assert (model.generation_config.bos_token_id, tokenizer.unk_token_id, tokenizer.model_max_length) == (1, 0, 64)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"add_tokenizer_pre": "llama-bpe"},
            r"must be \('gpt2', 'smollm'\), got \('gpt2', 'llama-bpe'\)",
        ),
        ({"add_embedding_length": None}, r"tiny.gguf must have the field 'llama.embedding_length'"),
        ({"add_block_count": 3}, "the tensors must be those of the configuration"),
        ({"add_feed_forward_length": 32}, "the tensors must be those of the configuration"),
    ],
)
def test_what_cannot_be_converted_is_named(changes: dict[str, Any], match: str, tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf", tiny(tied=True), **changes)
    with pytest.raises(ValueError, match=match):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"some words that are no header, and more of them"])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match="file is not a GGUF file"):
        convert(tmp_path / "file", tmp_path / "out")


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf", tiny(tied=True))
    whole = (tmp_path / "tiny.gguf").read_bytes()
    for part in (0.01, 0.3, 0.9):
        (tmp_path / "tiny.gguf").write_bytes(whole[: int(part * len(whole))])
        with pytest.raises(ValueError, match=r"tiny\.gguf is not a GGUF file"):
            convert(tmp_path / "tiny.gguf", tmp_path / "out")
