"""Initial weights of a draft model, pruned from its teacher: principal directions, heads, neurons and layers.

The residual stream is rotated to its principal axes and cut (SliceGPT, arXiv 2401.15024); heads and neurons are chosen
by their energy on a sample (Minitron, arXiv 2407.14679). Knows no training. R rows of L tokens, H hidden
size of the teacher, D of the draft.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from lade.base.shown import invalid


@torch.no_grad()
def cut_from(draft: LlamaForCausalLM, teacher: LlamaForCausalLM, sample: Tensor) -> None:
    """Overwrite the draft's weights; energies are measured on the token ids `sample` [R, L]."""
    check(draft, teacher)
    with channel_energies(teacher) as energies:
        states = teacher.model(sample, output_hidden_states=True, use_cache=False).hidden_states
    axes = principal_axes(torch.stack([unit.flatten(0, 1) for unit in states]), draft.config.hidden_size)  # [H, D]
    gain = math.sqrt(axes.shape[0] / axes.shape[1])  # norms take the mean of squares over fewer entries
    draft.model.embed_tokens.weight.copy_(teacher.model.embed_tokens.weight @ axes)
    draft.model.norm.weight.copy_(gain * torch.einsum("hd,h,hd->d", axes, teacher.model.norm.weight, axes))
    kept = torch.linspace(0, len(teacher.model.layers) - 1, len(draft.model.layers)).round().int().tolist()
    for layer, source in zip(draft.model.layers, kept, strict=True):
        cut_layer(layer, teacher.model.layers[source], axes, gain, energies)


def check(draft: LlamaForCausalLM, teacher: LlamaForCausalLM) -> None:
    """ValueError where the draft is larger than the teacher, or has other heads."""
    small, large = draft.config, teacher.config
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_key_value_heads"):
        if getattr(small, name) > getattr(large, name):
            raise invalid(f"{name} of size", f"at most the teacher's {getattr(large, name)}", getattr(small, name))
    group = [config.num_attention_heads // config.num_key_value_heads for config in (small, large)]
    if small.head_dim != large.head_dim or group[0] != group[1]:
        raise ValueError(
            f"size must have heads of size {large.head_dim}, {group[1]} per key-value head, as the teacher, "
            f"got heads of size {small.head_dim}, {group[0]} per key-value head"
        )


def principal_axes(states: Tensor, count: int) -> Tensor:
    """[H, D] principal axes of the states [S, N, H]; each of the S levels has equal weight."""
    levels = states / states.square().mean((1, 2), keepdim=True).sqrt()
    return torch.linalg.eigh(torch.einsum("snh,snk->hk", levels, levels)).eigenvectors.flip(1)[:, :count]


def cut_layer(
    layer: LlamaDecoderLayer,
    source: LlamaDecoderLayer,
    axes: Tensor,
    gain: float,
    energies: dict[nn.Module, Tensor],
) -> None:
    """Norm weights move into the matrices after them, so that the axes may be rotated."""
    new, old = layer.self_attn, source.self_attn
    value = energies[old.o_proj].view(old.k_proj.out_features // old.head_dim, -1).sum(1)  # [key heads]
    chosen = value.topk(new.k_proj.out_features // new.head_dim).indices.sort().values
    keys, queries = rows_of(chosen, old.head_dim), rows_of(chosen, old.o_proj.in_features // len(value))
    neurons = energies[source.mlp.down_proj].topk(layer.mlp.down_proj.in_features).indices.sort().values
    to_attention, to_mlp = source.input_layernorm.weight, source.post_attention_layernorm.weight
    for linear, whole, rows, norm in (
        (new.q_proj, old.q_proj, queries, to_attention),
        (new.k_proj, old.k_proj, keys, to_attention),
        (new.v_proj, old.v_proj, keys, to_attention),
        (layer.mlp.gate_proj, source.mlp.gate_proj, neurons, to_mlp),
        (layer.mlp.up_proj, source.mlp.up_proj, neurons, to_mlp),
    ):
        linear.weight.copy_((whole.weight * norm)[rows] @ axes)
    layer.input_layernorm.weight.fill_(gain)
    layer.post_attention_layernorm.weight.fill_(gain)
    new.o_proj.weight.copy_(axes.T @ old.o_proj.weight[:, queries])
    layer.mlp.down_proj.weight.copy_(axes.T @ source.mlp.down_proj.weight[:, neurons])


def rows_of(heads: Tensor, size: int) -> Tensor:
    """The rows of heads of `size` rows each."""
    return (heads[:, None] * size + torch.arange(size, device=heads.device)).flatten()


@contextmanager
def channel_energies(model: LlamaForCausalLM) -> Iterator[dict[nn.Module, Tensor]]:
    """The energy that each input adds, by matrix that writes to the residual stream, over the forwards inside."""
    found: dict[nn.Module, Tensor] = {}

    def note(linear: nn.Linear, inputs: tuple[Tensor]) -> None:
        found[linear] = inputs[0].flatten(0, 1).square().mean(0) * linear.weight.square().sum(0)

    writers = [linear for layer in model.model.layers for linear in (layer.self_attn.o_proj, layer.mlp.down_proj)]
    handles = [linear.register_forward_pre_hook(note) for linear in writers]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
