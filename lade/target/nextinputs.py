"""What transformers gives the forwards behind the prompt's: which inputs, and which positions.

Images, videos and sounds are read with the prompt, and their keys and values stay in the cache; what transformers goes
on giving the model after it, drafts must be able to carry. Knows transformers' `generate`, no tree.

B rows, P tokens of a prompt, A axes of a rotary embedding of several (M-RoPE, Wang et al. 2024, arXiv 2409.12191).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import DynamicCache, GenerationMixin
from transformers.modeling_outputs import ModelOutput

from lade.facts.vocabulary import readable

CARRIED = {"attention_mask", "position_ids", "past_key_values", "logits_to_keep", "use_cache", "tokenizer"}
# How images, videos and sounds lie in the prompt: models read it along with these only. Of what comes behind the prompt
# the token types are those of text.
LAYOUTS = {
    "batch_num_images",
    "feature_attention_mask",
    "image_grid_thw",
    "image_sizes",
    "mm_token_type_ids",
    "moe_mm_token_type_ids",
    "second_per_grid_ts",
    "spatial_shapes",
    "target_sizes",
    "target_sizes_videos",
    "video_grid_thw",
    "video_second_per_grid",
}
WITH_INDEX = 4  # axes of positions whose first one is a token's index in its text, which rotates nothing
CHECKED, SHIFT = 6, 3  # tokens of the check of positions, and what the index has there beyond the other axes

_one_for_all: WeakKeyDictionary[Any, dict[int, bool]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class NextInputs:
    """What plain decoding's forward after the prompt's gets beside a token and the cache.

    Attributes:
        positions: [B or 1, 1], or [A, B or 1, 1]; `None` if the model is given none.
        unknown: names of inputs of which only the model knows what they mean for drafts.
    """

    positions: torch.Tensor | None
    unknown: list[str]

    def of_roots(self, rows: int) -> list[int] | None:
        """The position of each row's next token; `None` where its axes differ, or none is given."""
        positions = self.positions
        if positions is None:
            return None
        if positions.dim() > 2:
            axes = positions[1:] if len(positions) == WITH_INDEX else positions
            positions = axes[-1]
            if bool((axes != positions).any()):
                return None
        found: list[int] = positions[:, -1].tolist()
        return found if len(found) == rows else found * rows


def next_inputs(model: Any, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> NextInputs:
    """Of a call with this prompt, by the model's own code.

    Args:
        input_ids: [B, P]
        model_kwargs: what `generate` passes to its decoding method.

    Raises:
        Exception: as the model's code raises.
    """
    if _are_usual(model, model_kwargs):
        positions = model_kwargs.get("position_ids")
        return NextInputs(None if positions is None else positions[..., -1:] + 1, [])
    kwargs = model._update_model_kwargs_for_generation(ModelOutput(), dict(model_kwargs), False)
    kwargs["past_key_values"] = DynamicCache()  # the call's own may ask for masks of its size
    ids = torch.cat([input_ids, input_ids.new_zeros(len(input_ids), 1)], dim=1)
    inputs = model.prepare_inputs_for_generation(ids, next_sequence_length=1, is_first_iteration=False, **kwargs)
    unknown = [name for name in beside_text(inputs) if name != "input_ids" and name not in LAYOUTS]
    return NextInputs(inputs.get("position_ids"), unknown)


def beside_text(inputs: dict[str, Any]) -> list[str]:
    """Names of inputs other than the usual ones. A text-only call of an image model has an empty dict of images."""
    given = {name for name, value in inputs.items() if not (value is None or (type(value) is dict and not value))}
    return sorted(given - CARRIED)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of an input, which may be encoded images of several parts, in their order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from (tensor for each in value.values() for tensor in tensors_in(each))
    elif isinstance(value, list | tuple):
        yield from (tensor for each in value for tensor in tensors_in(each))


def _are_usual(model: Any, model_kwargs: dict[str, Any]) -> bool:
    """Whether nothing but the usual inputs is given, and transformers' own method passes it on."""
    method = getattr(model.prepare_inputs_for_generation, "__func__", None)
    return method is GenerationMixin.prepare_inputs_for_generation and not beside_text(model_kwargs)


@torch.no_grad()
def one_position_will_do(model: Any, axes: int) -> bool:
    """Whether a model takes one position for equal ones of so many axes; tried once per model.

    Raises:
        Exception: as the model's code raises.
    """
    known = _one_for_all.setdefault(model, {})
    if axes not in known:
        ids = torch.arange(CHECKED, device=model.device)[None] % readable(model)
        one = torch.arange(CHECKED, device=model.device)[None]
        several = one.repeat(axes, 1, 1)
        if axes == WITH_INDEX:
            several[0] += SHIFT
        found = (model(input_ids=ids, position_ids=each, use_cache=False).logits for each in (one, several))
        known[axes] = torch.equal(*found)
    return known[axes]
