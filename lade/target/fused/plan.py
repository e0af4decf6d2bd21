"""Which models are LLaMA's kind: what of their modules a fused decoder computes by itself.

Every function that it stands for must be transformers' own, instruction for instruction, and unpatched; a layer may
have LLaMA's attention, or that of Mistral, Qwen2 or Qwen3, which differ by biases and by norms of queries and keys.
M hidden size, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from transformers.activations import SiLUActivation
from transformers.models.llama import modeling_llama as llama
from transformers.models.mistral import modeling_mistral as mistral
from transformers.models.qwen2 import modeling_qwen2 as qwen2
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from lade.base.bits import DTYPES, bits_of
from lade.target.code import is_stock
from lade.target.fused.linear import FewBlocks, FewTokens
from lade.target.fused.watch import Watch, global_hooks, is_only_counted, is_unpatched
from lade.weights.packed import dtype_of, product_of

Product = Callable[[torch.Tensor], torch.Tensor]

CAUSAL = llama.LlamaForCausalLM.forward
MODELS = (llama.LlamaModel.forward, mistral.MistralModel.forward, qwen2.Qwen2Model.forward, qwen3.Qwen3Model.forward)
LAYER = llama.LlamaDecoderLayer.forward
ATTENTIONS = (
    *(llama.LlamaAttention.forward, mistral.MistralAttention.forward),
    *(qwen2.Qwen2Attention.forward, qwen3.Qwen3Attention.forward),
)
ROTARIES = (
    *(llama.LlamaRotaryEmbedding.forward, mistral.MistralRotaryEmbedding.forward),
    *(qwen2.Qwen2RotaryEmbedding.forward, qwen3.Qwen3RotaryEmbedding.forward),
)
NORM, MLP = llama.LlamaRMSNorm.forward, llama.LlamaMLP.forward
ROTATE, ROTATE_HALF = llama.apply_rotary_pos_emb, llama.rotate_half
ROTATION, HALVES = "apply_rotary_pos_emb", "rotate_half"  # that attention calls, and that this calls
CHANGING = ("dynamic", "longrope")  # kinds of rotary positions whose frequencies depend on the text's length
SILUS = (SiLUActivation, nn.SiLU)

_plans: WeakKeyDictionary[Any, Plan | None] = WeakKeyDictionary()


class UnlikeError(Exception):
    """A model is of another kind."""


class Norm:
    """An RMS norm: factors [M], and what is added to the mean square."""

    __slots__ = ("bits", "epsilon", "weight")

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self.weight, self.epsilon = weight, np.float32(epsilon)
        self.bits = bits_of(weight.detach())


@dataclass(frozen=True, slots=True)
class Layer:
    """A decoder layer.

    Attributes:
        before, after: attention.
        query, key, value, output: products of attention.
        query_norm, key_norm: of single heads; `None` where there are none.
        gate, up, down: products of the gated MLP.
        size: D
        scaling: of the scores.
    """

    before: Norm
    query: Product
    key: Product
    value: Product
    query_norm: Norm | None
    key_norm: Norm | None
    output: Product
    after: Norm
    gate: Product
    up: Product
    down: Product
    size: int
    scaling: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What a fused decoder computes with.

    Attributes:
        dtype: of parameters and states.
        forward: of the model's class.
        watch: the modules that it stands for; not the model itself, which would never be freed.
        rotary: the module of rotary positions.
        norm: before the head.
    """

    dtype: torch.dtype
    forward: Callable[..., Any]
    watch: Watch
    embedding: nn.Embedding
    rotary: Any
    layers: list[Layer]
    norm: Norm

    def holds(self, model: Any, share: int | None = None) -> bool:
        """Whether the model is as it was; its modules are looked at as `Watch.holds` says."""
        if type(model).forward is not self.forward or not is_only_counted(model):
            return False
        return self.watch.holds(share)


def plan_of(model: Any) -> Plan | None:
    """How to compute a model as it is now; `None` if it is of another kind."""
    known = _plans.get(model)
    if known is None or not known.holds(model):
        known = _plans[model] = _made(model)
    return known


def reads_plain(model: Any) -> bool:
    """Whether fused layers multiply few tokens with the model's weights as they lie (`FewTokens`), and there are such
    layers."""
    plan = plan_of(model)
    return plan is not None and all(isinstance(layer.down, FewTokens) for layer in plan.layers)


def _made(model: Any) -> Plan | None:
    if model.device.type != "cpu" or model.dtype not in DTYPES:
        return None
    try:
        return _Reader(model.dtype).read(model)
    except (UnlikeError, AttributeError, KeyError):  # modules of other names
        return None


class _Reader:
    """Reads a model, module by module.

    Args:
        dtype: of all parameters.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.modules: list[nn.Module] = []
        self.tensors: list[torch.Tensor] = []

    def read(self, model: Any) -> Plan:
        _demand(not any(global_hooks()) and is_only_counted(model))
        _demand(is_stock(type(model).forward, CAUSAL))
        inner = self._take(model.model, *MODELS)
        rotary = self._take(inner.rotary_emb, *ROTARIES)
        _demand(rotary.rope_type not in CHANGING)
        embedding = self._embedding(inner.embed_tokens)
        modules = inner.layers[: inner.config.num_hidden_layers]
        _demand(len({_heads(layer.self_attn) for layer in modules}) == 1)
        layers = [self._layer(layer) for layer in modules]
        norm = self._norm(inner.norm)
        self.modules.append(inner.layers)
        watch = Watch(self.modules, self.tensors)
        forward = type(model).forward
        return Plan(self.dtype, forward, watch, embedding, rotary, layers, norm)

    def _embedding(self, module: Any) -> nn.Embedding:
        _demand(type(module) is nn.Embedding and module.max_norm is None)  # else it changes its weight
        found: nn.Embedding = self._take(module, nn.Embedding.forward)
        _demand(self._holds(found.weight))
        self.tensors.append(found.weight)
        return found

    def _layer(self, layer: Any) -> Layer:
        self._take(layer, LAYER)
        attention, mlp = self._take(layer.self_attn, *ATTENTIONS), self._take(layer.mlp, MLP)
        rotation = type(attention).forward.__globals__[ROTATION]
        _demand(is_stock(rotation, ROTATE))
        _demand(is_stock(rotation.__globals__[HALVES], ROTATE_HALF))
        _demand(isinstance(mlp.act_fn, SILUS) and is_unpatched(mlp.act_fn))
        self.modules.append(mlp.act_fn)
        of_heads = "q_norm" in attention._modules
        return Layer(
            self._norm(layer.input_layernorm),
            self._product(attention.q_proj),
            self._product(attention.k_proj),
            self._product(attention.v_proj),
            self._norm(attention.q_norm) if of_heads else None,
            self._norm(attention.k_norm) if of_heads else None,
            self._product(attention.o_proj),
            self._norm(layer.post_attention_layernorm),
            self._product(mlp.gate_proj),
            self._product(mlp.up_proj),
            self._product(mlp.down_proj),
            attention.head_dim,
            attention.scaling,
        )

    def _take(self, module: Any, *forwards: Callable[..., Any]) -> Any:
        """A module that does what one of these functions does."""
        _demand(not module.training and is_unpatched(module) and is_stock(type(module).forward, *forwards))
        self.modules.append(module)
        return module

    def _norm(self, module: Any) -> Norm:
        _demand(self._holds(self._take(module, NORM).weight))
        self.tensors.append(module.weight)
        return Norm(module.weight, module.variance_epsilon)

    def _product(self, module: Any) -> Product:
        product = product_of(module)
        found = FewTokens.of(module) or FewBlocks.of(product) or product
        if found is None:
            raise UnlikeError
        _demand(is_unpatched(module) and dtype_of(module) is self.dtype and module.weight.device.type == "cpu")
        self.modules.append(module)
        return found

    def _holds(self, weight: torch.Tensor) -> bool:
        return weight.dtype is self.dtype and weight.device.type == "cpu"


def _heads(attention: Any) -> tuple[int, ...]:
    """Shape of a layer's queries and keys."""
    return attention.q_proj.out_features, attention.k_proj.out_features, attention.head_dim


def _demand(holds: bool) -> None:
    if not holds:
        raise UnlikeError
