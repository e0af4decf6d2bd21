"""A run's checkpoint on disk, and the trained weights exported in bfloat16.

Checkpoints are written atomically: to a temporary file, which is renamed. Knows no data and no schedule.
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
    """Progress of a run: steps, and seconds of work, earlier parts of the run included."""

    step: int = 0
    seconds: float = 0.0


def save(
    folder: Path, model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, state: State, plan: dict[str, Any]
) -> None:
    """Save a checkpoint; `plan` holds what must be equal when the run resumes."""
    beside = folder / (FILE + ".part")
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "state": vars(state), "plan": plan}
    torch.save(content, beside)
    beside.replace(folder / FILE)


def restore(folder: Path, model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, plan: dict[str, Any]) -> State:
    """Load weights and optimizer in place; ValueError where `plan` differs from the saved one."""
    saved = torch.load(folder / FILE, map_location="cpu", weights_only=True)
    for name, value in plan.items():
        if saved["plan"].get(name) != value:
            raise invalid(name, f"{saved['plan'].get(name)!r}, as in the run in {folder}", value)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return State(**saved["state"])


def export(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Save the model in bfloat16 safetensors with its tokenizer, for `from_pretrained`."""
    half = copy.deepcopy(model).to("cpu", torch.bfloat16)
    half.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
