"""Forwards of a twin's modules whose products of few tokens are lade's kernels (`lade.kernels.products`).

They compute what the modules compute that they replace. What is known of a linear layer when the twin is made: calls of
it run `torch.nn.Linear.forward` and nothing else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lade.kernels import between, products
from lade.target.fused.watch import is_unpatched

SHARED = "q_proj", "k_proj", "v_proj"  # layers of an attention module that compute with the same states


class Linear(nn.Linear):
    """A linear layer."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if products.fit(input, self.weight):
            return products.linear(input, [self.weight], [self.bias])
        return super().forward(input)


def is_linear(layer: nn.Module) -> bool:
    """Whether a layer can be a `Linear`."""
    return type(layer) is nn.Linear and is_unpatched(layer) and type(layer.weight) in (torch.Tensor, nn.Parameter)


class Together:
    """Linear layers that are called with the same states one after another: one product computes all."""

    def __init__(self, layers: list[Any]) -> None:
        self.layers = layers
        self.states: torch.Tensor | None = None  # of the last product
        self.found: tuple[torch.Tensor, ...] = ()

    def product(self, place: int, states: torch.Tensor) -> torch.Tensor:
        """[..., T, N] of one of the layers."""
        if self.states is not states:
            weights = [layer.weight for layer in self.layers]
            if not products.fit(states, *weights):
                return Linear.forward(self.layers[place], states)
            found = products.linear(states, weights, [layer.bias for layer in self.layers])
            self.states, self.found = states, torch.split(found, [len(weight) for weight in weights], dim=-1)
        own = self.found[place]
        if place == len(self.layers) - 1:  # nothing is kept from layer to layer
            self.states, self.found = None, ()
        return own


class Part(Linear):
    """One of these layers."""

    together: Together
    place: int

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.together.product(self.place, input)


def share(children: dict[str, Any]) -> None:
    """Let an attention module's layers compute together, if they can."""
    layers: list[Any] = [children.get(name) for name in SHARED]
    if all(type(layer) is Linear for layer in layers) and len({layer.bias is None for layer in layers}) == 1:
        together = Together(layers)
        for place, (name, layer) in enumerate(zip(SHARED, layers, strict=True)):
            children[name] = object.__new__(Part)
            children[name].__dict__.update(layer.__dict__, together=together, place=place)


def gated(self: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
    """LLaMA's MLP, with a residual that is added."""
    own = type(self.gate_proj) is type(self.up_proj) is Linear and self.gate_proj.bias is self.up_proj.bias is None
    if own and products.fit(x, self.gate_proj.weight, self.up_proj.weight):
        states = products.gated(x, self.gate_proj.weight, self.up_proj.weight)
    else:
        gates, values = self.gate_proj(x), self.up_proj(x)
        states = between.gated(gates, values) if between.gates_fit(gates, values) else self.act_fn(gates) * values
    down = self.down_proj
    fits = type(down) is Linear and products.fit(states, down.weight)
    if fits and residual is not None and residual.is_contiguous() and residual.dtype is states.dtype:
        return products.linear(states, [down.weight], [down.bias], residual)
    found: torch.Tensor = down(states)
    return found if residual is None else residual + found


def layer(
    self: Any,
    hidden_states: torch.Tensor,
    attention_mask: Any = None,
    position_ids: Any = None,
    past_key_values: Any = None,
    use_cache: bool | None = False,
    position_embeddings: Any = None,
    **kwargs: Any,
) -> torch.Tensor:
    """LLaMA's decoder layer; residuals are added by the norm behind attention, and by the MLP's last product."""
    attended, _ = self.self_attn(
        hidden_states=self.input_layernorm(hidden_states),
        attention_mask=attention_mask,
        position_ids=position_ids,
        past_key_values=past_key_values,
        use_cache=use_cache,
        position_embeddings=position_embeddings,
        **kwargs,
    )
    norm = self.post_attention_layernorm
    if between.added_norm_fits(attended, hidden_states, norm.weight):
        sums, states = between.added_norm(attended, hidden_states, norm.weight, norm.variance_epsilon)
    else:
        sums = hidden_states + attended
        states = norm(sums)
    return gated(self.mlp, states, sums)
