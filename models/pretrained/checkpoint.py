"""A run's state on disk, and the trained weights in bfloat16 for others to load.

The state is complete or not there: it is written beside its place and renamed. Knows no data and no schedule.
"""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from lade.base.shown import invalid

FILE = "checkpoint.pt"


@dataclass
class State:
    """How far a run is: steps taken, and seconds of work over all its sittings."""

    step: int = 0
    seconds: float = 0.0


def save(
    folder: Path, model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, state: State, plan: dict[str, Any]
) -> None:
    """`plan` is what must be the same for a run that goes on from here."""
    beside = folder / (FILE + ".part")
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "state": vars(state), "plan": plan}
    torch.save(content, beside)
    beside.replace(folder / FILE)


def restore(folder: Path, model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, plan: dict[str, Any]) -> State:
    """Loads weights and optimizer in place. ValueError names what differs from the run that was saved."""
    saved = torch.load(folder / FILE, map_location="cpu", weights_only=True)
    for name, value in plan.items():
        if saved["plan"].get(name) != value:
            raise invalid(name, f"{saved['plan'].get(name)!r}, as in the run in {folder}", value)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return State(**saved["state"])


def export(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """The model in bfloat16 safetensors with its tokenizer, as `from_pretrained` reads it."""
    half = copy.deepcopy(model).to("cpu", torch.bfloat16)
    half.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
