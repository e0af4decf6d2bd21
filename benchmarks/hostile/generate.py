"""Comparing single calls, plain and with lade, in everything visible to a caller."""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

import lade
from hostile.calls import CallInputs, arguments, patched, plainly, with_lade
from hostile.case import Case
from hostile.changes import CHANGES
from hostile.outcome import CallOutcome, differences
from hostile.subjects import subject
from hostile.ties import near_tie
from hostile.verdict import CaseVerdict
from hostile.warmth import keep_table


def run(case: Case, verdict: CaseVerdict) -> None:
    model = subject(case.model, case.attention, case.dtype)
    if case.warm or case.change:
        model = copy.deepcopy(model)
    if case.change:
        _before_the_change(case, model)
        CHANGES[case.change](model)
    if case.warm:
        keep_table(case, model)
    compare(case, model, verdict)
    if case.warm:
        empty_cache_folder()


def _before_the_change(case: Case, model: PreTrainedModel) -> None:
    """A call with lade before the change of the model."""
    given = CallInputs({"input_ids": torch.tensor([[3, 4, 5, 6]]), "max_new_tokens": 4, "do_sample": False})
    with_lade(case, model, given)


def compare(case: Case, model: PreTrainedModel, verdict: CaseVerdict, allowed: tuple[str, ...] = ()) -> None:
    """Run the case's call both ways; differences go into the verdict.

    Args:
        allowed: expected warnings of lade.
    """
    given = arguments(case, model)
    plain = plainly(case, model, given)
    plain.hidden = _hidden(case, given)
    ours = ours_of(case, model, plain, verdict)
    ours.warned = [warning for warning in ours.warned if warning[0] not in allowed]
    found = differences(ours, plain) if not _refused(case, ours) else []
    tie = near_tie(case, model, ours, plain, arguments(case, model)) if found else None
    if tie is not None:
        verdict.ties.append(tie)
        found = []
    if found:
        again = differences(plainly(case, model, arguments(case, model)), plain)
        verdict.unsteady = "; ".join(again)
    if not verdict.unsteady:
        verdict.differences += found
    if patched():
        verdict.differences.append("transformers stays patched after the call")


def ours_of(case: Case, model: PreTrainedModel, plain: CallOutcome, verdict: CaseVerdict) -> CallOutcome:
    """The call with lade, counted in the verdict."""
    lade.drop_pools()
    if case.config.get("tenant"):
        with_lade(case, model, arguments(case, model))  # fills the tenant's pool
    given = arguments(case, model)
    ours = with_lade(case, model, given, plain.sequences)
    if ours.error is None:
        width = given.arguments["input_ids"].shape[1] if "input_ids" in given.arguments else 0
        new = (ours.sequences.shape[1] - width) * ours.sequences.shape[0] if ours.sequences is not None else 0
        verdict.count(new, ours.stats)
    elif plain.error is not None:
        verdict.raised = type(plain.error).__name__
    return ours


def _hidden(case: Case, given: CallInputs) -> Any:
    """Padding whose cache entries no text reads and that are not comparable; `None` where all entries are.

    Padding attends to masked positions only. Prefilled in chunks it sees others of them, and eager attention takes the
    mean over all of them, which for plain decoding with a static cache are its whole capacity.
    """
    mask = given.arguments.get("attention_mask")
    differs = "prefill_chunks" in case.options or (case.attention == "eager" and "static" in case.cache)
    return mask == 0 if mask is not None and differs else None


def _refused(case: Case, ours: CallOutcome) -> bool:
    """Whether lade rejected an argument that plain decoding does not have."""
    names = {"outside": "reference"}.get(case.reference), {"self": "model"}.get(case.method)
    return isinstance(ours.error, ValueError) and any(name and str(ours.error).startswith(name) for name in names)


def empty_cache_folder() -> None:
    folder = Path(os.environ["LADE_CACHE"])
    if folder.exists():
        shutil.rmtree(folder)
