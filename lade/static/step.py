"""One step without a decision of the host: forward, choice, walk, compaction and top-k, all of fixed shapes.

N nodes of all rows, R rows, W words of ancestors, V vocabulary, k tokens of a top-k.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lade.core.topk import exactly_likeliest
from lade.core.tree import Draft
from lade.memory.predictions import TOP
from lade.static.attention import NAME, StaticForward
from lade.static.choices import Chooser
from lade.static.inputs import CERTAIN, UNASKED, StepInputs
from lade.static.kernelrows import Kernel, KernelForward, marks, rows_of
from lade.static.sight import masks
from lade.static.slots import StaticSlots
from lade.target.attention import packed
from lade.target.masks import MaskKind, layer_kinds
from lade.target.pieces import WORD
from lade.target.verdicts import implementation_of

RIGHT, NOT_A_NUMBER = 1, 2  # flags of a node
SPLITS = "sdpa"  # models of this implementation get the attention of several rows by lade's dispatcher


class StaticStep:
    """The function, for one model.

    Its only state is that of the slots: the keys and values of accepted nodes, and their counts.

    Args:
        chooser: how a token is chosen after each node.
        vocabulary: top-k tokens are below this one.
        kernel: computes attention, for models of transformers' SDPA; `None`: SDPA with masks.
    """

    def __init__(
        self,
        model: Any,
        slots: StaticSlots,
        chooser: Chooser,
        vocabulary: int | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        self.model, self.slots, self.chooser, self.vocabulary = model, slots, chooser, vocabulary
        self.kernel, slots.whole = kernel, kernel is not None
        self.kinds: dict[str, MaskKind] | MaskKind = layer_kinds(model.config.get_text_config(decoder=True))
        self.dispatches = implementation_of(model) == SPLITS and slots.count > 1
        if kernel is not None and implementation_of(model) != SPLITS:
            raise ValueError(f"kernel must be None for attention {implementation_of(model)!r}, got one")
        if slots.count > 1 and not self.dispatches and implementation_of(model) != NAME:
            raise ValueError(f"slots must be 1 for attention {implementation_of(model)!r}, got {slots.count}")

    def __call__(self, inputs: StepInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """What the host reads, and what stays on the device.

        Returns:
            [N, 2 + 2k] int32: per node its choice, flags, top-k tokens, and the float32 bits of their probabilities.
            Flags are `RIGHT` if the node is accepted, plus `NOT_A_NUMBER` if there is NaN in its logits.
            [N, V] logits.
        """
        slots = self.slots
        slots.rows = inputs.rows
        slots.places = slots.offsets[inputs.slots] + slots.lengths[inputs.slots] + inputs.indices
        logits = self.forward(inputs)
        choices = self.chooser(logits, inputs, slots)
        right = self.walk(inputs, choices)
        tokens, probabilities = self.likeliest(logits, inputs)
        slots.keep(right, inputs.depths, inputs.slots, right & (inputs.orders > UNASKED))
        largest = logits.gather(1, logits.argmax(-1, keepdim=True))  # NaN counts as the largest
        flags = RIGHT * right[:, None] + NOT_A_NUMBER * largest.isnan()
        columns = [choices[:, None], flags, tokens, probabilities.view(torch.int32)]
        return torch.cat([column.int() for column in columns], dim=1), logits

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """[N, V]"""
        kinds = list(self.kinds.values()) if isinstance(self.kinds, dict) else [self.kinds]
        scope: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self.kernel is not None:
            scope = packed(KernelForward(self.kernel, kinds, rows_of(inputs, self.slots)))  # type: ignore[arg-type]
            seen = marks(kinds, len(inputs.ids), torch.empty(0, dtype=self.model.dtype, device=inputs.ids.device))
        else:
            if self.dispatches:
                scope = packed(StaticForward())  # type: ignore[arg-type]
            seen = masks(kinds, inputs, self.slots, self.model.dtype)
        with scope:
            output = self.model(
                input_ids=inputs.ids[None],
                position_ids=(self.slots.lengths[inputs.slots] + inputs.depths)[None],
                attention_mask=seen if isinstance(self.kinds, dict) else seen[self.kinds.name],
                past_key_values=self.slots.cache,
                use_cache=True,
                return_dict=True,
            )
        logits: torch.Tensor = output.logits[0]
        return logits

    def walk(self, inputs: StepInputs, choices: torch.Tensor) -> torch.Tensor:
        """[N] bool: the nodes whose ancestors and which themselves are what was chosen after their parents."""
        fits = (inputs.claims == CERTAIN) | (inputs.claims == choices[inputs.parents])
        first = torch.arange(len(fits), device=fits.device) - inputs.indices
        bits = torch.arange(WORD, device=fits.device)
        ancestors = (inputs.words[:, :, None] >> bits & 1).flatten(1).bool()  # [N, 64 * W]
        others = (first[:, None] + torch.arange(ancestors.shape[1], device=fits.device)).clamp(max=len(fits) - 1)
        return (fits[others] | ~ancestors).all(1) & (inputs.slots != self.slots.spare)

    def likeliest(self, logits: torch.Tensor, inputs: StepInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, k] tokens and their [N, k] float32 probabilities."""
        known = logits.float()[:, : self.vocabulary]
        inverse = self.slots.inverse_temperatures[inputs.slots][:, None]
        return exactly_likeliest(inverse * known, min(TOP, known.shape[1]))


@dataclass(frozen=True, slots=True)
class Taken:
    """What one row has of a step.

    Attributes:
        path: accepted nodes, ascending.
        tokens: emitted: those chosen after the accepted nodes whose logits are asked for.
        likeliest: [T, k] of each node, int32.
        probabilities: [T, k] of each node, float32.
    """

    path: list[int]
    tokens: list[int]
    likeliest: torch.Tensor
    probabilities: torch.Tensor


def taken(output: torch.Tensor, drafts: Sequence[Draft]) -> list[Taken]:
    """What each row has of the output of a step, which is on the host."""
    found, first, top = [], 0, output.shape[1] // 2 + 1
    for draft in drafts:
        own = output[first : first + len(draft)]
        path = (own[:, 1] & RIGHT).nonzero().flatten().tolist()
        asked = draft.queries[0] if draft.queries else len(draft)
        tokens = [int(own[node, 0]) for node in path if node >= asked]
        found.append(Taken(path, tokens, own[:, 2:top], own[:, top:].view(torch.float32)))
        first += len(draft)
    return found
