"""The training loop: rows, objective, AdamW and checkpoints.

Knows no command line and no corpus. R rows of L + 1 tokens per step, in micro-batches.
"""

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from lade.models.pretrained import checkpoint
from lade.models.pretrained.batches import Mixture
from lade.models.pretrained.objectives import Objective, next_token
from lade.models.pretrained.plan import Plan, rate
from lade.models.pretrained.progress import Report

SAVE_EVERY = 90.0  # seconds
EVALUATE_EVERY = 0.05  # of the run


class Trainer:
    """Trains one model by one plan, in the folder `out`."""

    def __init__(
        self, model: LlamaForCausalLM, objective: Objective, train: Mixture, held_out: Mixture, plan: Plan, out: Path
    ) -> None:
        self._model, self._train, self._plan, self._out = model, train, plan, out
        self._objective = torch.compile(objective) if plan.compile else objective
        self._optimizer = _adamw(model, plan)
        self._held_out = held_out.rows(0, plan.held_out_rows, plan.length + 1)
        self._state = checkpoint.State()

    def resume(self) -> None:
        """Resume from the checkpoint in the folder."""
        self._state = checkpoint.restore(self._out, self._model, self._optimizer, self._plan.fixed())

    def run(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """Train to the end of the budget; also after an error, save the state and export the weights."""
        with Report(self._out / "log.jsonl", self._state.seconds) as report:
            try:
                self._run(report)
            finally:
                self.save()
                checkpoint.export(self._out / "model", self._model, tokenizer)
                (self._out / "run.json").write_text(json.dumps(self.summary(), indent=1) + "\n", encoding="utf-8")

    def save(self) -> None:
        checkpoint.save(self._out, self._model, self._optimizer, self._state, self._plan.fixed())

    def summary(self) -> dict[str, Any]:
        """Size, progress and settings of the run."""
        device = self._model.device
        return {
            "parameters": self._model.num_parameters(),
            "steps": self._state.step,
            "tokens": self._state.step * self._plan.step_tokens,
            "minutes": round(self._state.seconds / 60, 1),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
            "plan": self._plan.fixed(),
        }

    def held_out_loss(self) -> float:
        """Mean cross entropy in nats over the held-out rows."""
        with torch.no_grad():
            losses = [next_token(self._model, rows) for rows in self._micro(self._held_out)]
        return float(torch.stack(losses).mean())

    def _run(self, report: Report) -> None:
        state, budget, saved = self._state, self._plan.budget, time.monotonic()
        pending: Tensor | None = None
        while (progress := budget.progress(state.step, state.seconds)) < 1:
            loss = self._step(rate(progress))
            if pending is not None:  # the loss of the previous step, so that reading it does not wait for this one
                report.step(progress, state.step, self._plan.step_tokens, float(pending))
            pending, state.step, state.seconds = loss, state.step + 1, report.seconds
            after = budget.progress(state.step, state.seconds)
            if after // EVALUATE_EVERY > progress // EVALUATE_EVERY:
                report.held_out(state.step, self.held_out_loss())
            if time.monotonic() - saved > SAVE_EVERY:
                self.save()
                saved = time.monotonic()
        if pending is not None:
            report.step(1.0, state.step, self._plan.step_tokens, float(pending))

    def _step(self, factor: float) -> Tensor:
        """Take a step; returns the mean loss over its rows, before the update."""
        for group in self._optimizer.param_groups:
            group["lr"] = factor * self._plan.learning_rate
        losses = []
        for rows in self._micro(self._train.rows(self._state.step, self._plan.rows, self._plan.length + 1)):
            loss = self._objective(self._model, rows)
            (loss * len(rows) / self._plan.rows).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return torch.stack(losses).mean()

    def _micro(self, rows: Tensor) -> list[Tensor]:
        """[R, L + 1] rows in micro-batches on the model's device."""
        return [part.to(self._model.device, non_blocking=True) for part in torch.split(rows, self._plan.micro_rows)]


def _adamw(model: LlamaForCausalLM, plan: Plan) -> torch.optim.AdamW:
    """AdamW without weight decay on norms."""
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    vectors = [weight for weight in model.parameters() if weight.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": plan.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.95), fused=True)
