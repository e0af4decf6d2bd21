"""A step of fixed shapes that asks the host nothing: it keeps what was accepted, computes trees, and finds their top-k.

The host chooses and walks, so any emission fits; `lade.static.walking` does both on the device. N nodes of all rows, R
rows, W words of ancestors, V vocabulary, k tokens of a top-k.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from lade.core.topk import exactly_likeliest
from lade.kernels import available
from lade.kernels.between import HALVES
from lade.kernels.sizes import program_tokens
from lade.memory.predictions import TOP
from lade.static.attention import NAME
from lade.static.condensed import condensed
from lade.static.inputs import StepInputs
from lade.static.kernelrows import Kernel, KernelForward, marks, rows_of
from lade.static.sight import masks
from lade.static.slots import StaticSlots
from lade.target.attention import can_pack, packed
from lade.target.grouped import GroupedForward, repeats
from lade.target.masks import MaskKind, layer_kinds
from lade.target.verdicts import implementation_of

NOT_A_NUMBER = 1  # flag of a node
SPLITS = "sdpa"  # models of this implementation get attention by lade's dispatcher: of several rows, or grouped heads


class StaticStep:
    """The function, for one model.

    Its only state is that of the slots: their keys and values, and how many these are.

    Args:
        vocabulary: top-k tokens are below this one.
        kernel: computes attention, for models of transformers' SDPA; `None`: SDPA with masks.

    Attributes:
        multiplies: by `program_tokens`, whether lade's products are faster there than PyTorch's; where it says nothing,
            they are taken for it. Steps of the same slots share it.
    """

    def __init__(
        self,
        model: Any,
        slots: StaticSlots,
        vocabulary: int | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        self.model, self.slots, self.vocabulary = model, slots, vocabulary
        self.kernel, slots.reach.whole = kernel, kernel is not None
        self.multiplies: dict[int, bool] = {}
        self._twins: dict[bool, Any] = {}  # by whether their products are lade's
        slots.reach.kernels = kernel is not None and available.runs(slots.lengths.device)
        self.kinds: dict[str, MaskKind] | MaskKind = layer_kinds(model.config.get_text_config(decoder=True))
        copies = repeats(model) and can_pack(SPLITS)  # one row does without a dispatcher where it would not
        self.dispatches = implementation_of(model) == SPLITS and (slots.count > 1 or copies)
        if kernel is not None and implementation_of(model) != SPLITS:
            raise ValueError(f"kernel must be None for attention {implementation_of(model)!r}, got one")
        if slots.count > 1 and not self.dispatches and implementation_of(model) != NAME:
            raise ValueError(f"slots must be 1 for attention {implementation_of(model)!r}, got {slots.count}")

    def __call__(self, inputs: StepInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """What the host reads, and what stays on the device.

        Returns:
            [N, 2 + 2k] int32: per node the most likely token, `NOT_A_NUMBER` if there is NaN in its logits, top-k
            tokens, and the float32 bits of their probabilities.
            [N, V] logits.
        """
        self.begin(inputs)
        return self.end(inputs, self.core(inputs))

    def belong(self, model: Any) -> None:
        """Compute with this model, which is that of before or `None`."""
        self.model = model
        self._twins.clear()

    def begin(self, inputs: StepInputs) -> None:
        """Keep what was accepted of the last step."""
        self.slots.settle(inputs.rows, inputs.lengths, inputs.sources, inputs.goals)

    def core(self, inputs: StepInputs) -> tuple[torch.Tensor, ...]:
        """What may be compiled. It knows no `stacks`, and writes once to each layer's memory: torch's compiler would
        copy what is written to twice, or of which another input is a view."""
        logits = self.compute(inputs)
        return self.table(logits, likeliest_token(logits), inputs), logits

    def end(self, inputs: StepInputs, found: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """The output, from what the core found."""
        return found[0], found[1]

    def larger(self, tokens: int) -> StaticStep:
        """The same with slots of so many tokens, which hold what these hold."""
        slots = StaticSlots(self.slots.cache.layers, self.slots.count, tokens, self.slots.lengths.device)
        slots.copy_from(self.slots)
        larger = StaticStep(self.model, slots, self.vocabulary, self.kernel)
        larger.multiplies = self.multiplies
        return larger

    def compute(self, inputs: StepInputs) -> torch.Tensor:
        """[N, V] logits; keys and values lie behind their slots' tokens."""
        self.slots.aim(inputs.rows, inputs.slots, inputs.indices)
        return self.forward(inputs)

    def table(
        self, logits: torch.Tensor, choices: torch.Tensor, inputs: StepInputs, flags: int | torch.Tensor = 0
    ) -> torch.Tensor:
        """[N, 2 + 2k] of choices, flags and top-k."""
        tokens, probabilities = self.likeliest(logits, inputs)
        largest = logits.amax(-1, keepdim=True)  # NaN counts as the largest
        columns = [choices[:, None], flags + NOT_A_NUMBER * largest.isnan(), tokens, probabilities.view(torch.int32)]
        return torch.cat([column.int() for column in columns], dim=1)

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """[N, V]"""
        kinds = list(self.kinds.values()) if isinstance(self.kinds, dict) else [self.kinds]
        scope: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        model: Any = self.model
        if self.kernel is not None:
            if self.slots.reach.kernels:
                model = self._twin(self.multiplies.get(program_tokens(len(inputs.ids)), True))
            scope = packed(KernelForward(self.kernel, kinds, rows_of(inputs, self.slots)))  # type: ignore[arg-type]
            seen = marks(kinds, len(inputs.ids), torch.empty(0, dtype=self.model.dtype, device=inputs.ids.device))
        else:
            scope = self.attending()
            seen = masks(kinds, inputs, self.slots, self.model.dtype)
        with scope:
            output = model(
                input_ids=inputs.ids[None],
                position_ids=(self.slots.next_positions[inputs.slots] + inputs.depths)[None],
                attention_mask=seen if isinstance(self.kinds, dict) else seen[self.kinds.name],
                past_key_values=self.slots.cache,
                use_cache=True,
                return_dict=True,
            )
        logits: torch.Tensor = output.logits[0]
        return logits

    @property
    def chooses(self) -> bool:
        """Whether there are two kinds of products to choose from."""
        return self.slots.reach.kernels and self.model.dtype in HALVES

    def _twin(self, multiplies: bool) -> Any:
        """The model with lade's kernels: to make it takes as long as a forward pass of its launches."""
        if multiplies not in self._twins:
            self._twins[multiplies] = condensed(self.model, multiplies)
        return self._twins[multiplies]

    def attending(self, traced: bool = False) -> contextlib.AbstractContextManager[Any]:
        """The scope of a forward with masks. torch's compiler does not enter it: it is opened around what is traced."""
        if self.kernel is not None or not self.dispatches or torch.compiler.is_compiling():
            return contextlib.nullcontext()
        return packed(GroupedForward(traced))

    def likeliest(self, logits: torch.Tensor, inputs: StepInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, k] tokens and their [N, k] float32 probabilities."""
        known = logits.float()[:, : self.vocabulary]
        inverse = self.slots.inverse_temperatures[inputs.slots][:, None]
        return exactly_likeliest(inverse * known, min(TOP, known.shape[1]))


def likeliest_token(logits: torch.Tensor) -> torch.Tensor:
    """[N] from [N, V]; ties are broken in float32, as in plain decoding."""
    return logits.float().argmax(-1)
