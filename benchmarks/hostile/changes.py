"""Changes of a model between two calls of `generate`: hooks, replaced methods, other weights."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

TOKEN = 11  # the token that changed models prefer
ModelChange = Callable[[PreTrainedModel], None]


def _steered(logits: Tensor, last: bool = True) -> Tensor:
    logits = logits.clone()
    place = slice(-1, None) if last else slice(None)
    logits[:, place, TOKEN] += 4.0
    return logits


def _layers(model: PreTrainedModel) -> list[Any]:
    """Attention modules, found by name."""
    named = [
        module
        for name, module in model.named_modules()
        if name.rsplit(".", 1)[-1] in ("self_attn", "attn", "attention")
    ]
    return named or [model]


def last_position(model: PreTrainedModel) -> None:
    """A forward hook that changes the logits of the last position only."""
    model.get_output_embeddings().register_forward_hook(lambda module, inputs, output: _steered(output))


def every_position(model: PreTrainedModel) -> None:
    """A forward hook that changes the logits of all positions."""
    model.get_output_embeddings().register_forward_hook(lambda module, inputs, output: _steered(output, last=False))


def first_hook(model: PreTrainedModel) -> None:
    """A pre-forward hook that depends on the number of positions."""

    def hook(module: Any, inputs: tuple[Any, ...]) -> Any:
        return (inputs[0] * (1 + 0.1 * (inputs[0].shape[-2] % 2)), *inputs[1:])

    model.get_output_embeddings().register_forward_pre_hook(hook)


def attention_hook(model: PreTrainedModel) -> None:
    """A forward hook of attention that changes the last position only."""

    def hook(module: Any, inputs: Any, output: Any) -> Any:
        first = (output[0] if isinstance(output, tuple) else output).clone()
        first[:, -1] *= 1.5
        return (first, *output[1:]) if isinstance(output, tuple) else first

    _layers(model)[-1].register_forward_hook(hook)


def attention_forward(model: PreTrainedModel) -> None:
    """Attention's `forward` replaced on the instance by one that depends on the number of positions."""
    module = _layers(model)[0]
    original = module.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        first = found[0] if isinstance(found, tuple) else found
        if not isinstance(first, Tensor):
            return found
        scale = 1 + 0.2 * torch.linspace(0, 1, first.shape[1], dtype=first.dtype).flip(0)[None, :, None]
        return (first * scale, *found[1:]) if isinstance(found, tuple) else first * scale

    module.forward = types.MethodType(forward, module)


def model_forward(model: PreTrainedModel) -> None:
    """The model's own `forward` replaced on the instance."""
    original = model.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        found.logits = _steered(found.logits)
        return found

    model.forward = types.MethodType(forward, model)


def prepare_inputs(model: PreTrainedModel) -> None:
    """`prepare_inputs_for_generation` of a subclass that rewrites ids."""

    class Rewriting(type(model)):  # type: ignore[misc]
        def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
            inputs = super().prepare_inputs_for_generation(*args, **kwargs)
            if inputs.get("input_ids") is not None:
                ids = inputs["input_ids"]
                inputs["input_ids"] = torch.where(ids == TOKEN, TOKEN + 1, ids)
            return inputs

    model.__class__ = Rewriting


def prepare_inputs_of_instance(model: PreTrainedModel) -> None:
    """The same, replaced on the instance."""
    original = model.prepare_inputs_for_generation

    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = original(*args, **kwargs)
        if inputs.get("input_ids") is not None:
            inputs["input_ids"] = (inputs["input_ids"] // 2) * 2
        return inputs

    model.prepare_inputs_for_generation = types.MethodType(prepare, model)


def per_step_state(model: PreTrainedModel) -> None:
    """A subclass that keeps a state of every step in `_update_model_kwargs_for_generation`."""
    steps: list[int] = []

    class Counting(type(model)):  # type: ignore[misc]
        def _update_model_kwargs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
            steps.append(1)
            return super()._update_model_kwargs_for_generation(*args, **kwargs)

        def generate(self, *args: Any, **kwargs: Any) -> Any:
            steps.clear()
            return super().generate(*args, **kwargs)

    model.__class__ = Counting
    head = model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, output: output + (len(steps) % 3) * 0.5 * _ramp(output))


def _ramp(output: Tensor) -> Tensor:
    return torch.linspace(0, 1, output.shape[-1], dtype=output.dtype)


@torch.no_grad()
def weights(model: PreTrainedModel) -> None:
    """Other weights, written in place."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(1.3)


def settings(model: PreTrainedModel) -> None:
    """Other defaults in the model's generation config."""
    model.generation_config.repetition_penalty = 1.4
    model.generation_config.return_dict_in_generate = True


def training(model: PreTrainedModel) -> None:
    """Training mode."""
    model.train()


CHANGES: dict[str, ModelChange] = {
    "last-position": last_position,
    "every-position": every_position,
    "first-hook": first_hook,
    "attention-hook": attention_hook,
    "attention-forward": attention_forward,
    "model-forward": model_forward,
    "prepare-inputs": prepare_inputs,
    "prepare-inputs-instance": prepare_inputs_of_instance,
    "per-step-state": per_step_state,
    "weights": weights,
    "settings": settings,
    "training": training,
}
