"""Calls that vLLM 0.32 made (`record.py`): every row is found again, and its lines are those that vLLM chose from."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import vllm_engine
from vllm_engine import config, loaded

from lade.core.drafter import Predictions
from lade.core.request import Request, Verdict
from lade.core.tree import Draft, TreeBuilder

RECORDING = json.loads(Path(__file__).with_name("recording.json").read_text())
V = 8192


def chain(root: int, tokens: Sequence[int]) -> Draft:
    builder = TreeBuilder(root)
    builder.add_path(0, list(tokens), "suffix")
    return builder.build()


def test_every_recorded_call_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_engine.install(monkeypatch)
    settings = config(vocabulary=V)
    settings.model_config.max_model_len = 160
    proposer, model = loaded(settings)
    learned: list[int] = []

    def observe(
        requests: Sequence[Request], drafts: Sequence[Draft], verdicts: Sequence[Verdict], said: Predictions
    ) -> None:
        for slot, verdict in enumerate(verdicts):
            assert [said.greedy(slot, node) for node in verdict.path] == verdict.tokens
            learned.append(len(verdict.tokens))

    monkeypatch.setattr(proposer._drafter, "observe", observe)
    for call in RECORDING["calls"]:
        given = [draft for draft, new in zip(call["drafts"], call["sampled"], strict=True) if new]
        replay(monkeypatch, proposer, model, call, given)
    # a request's first token has no draft before it, and a cut draft may leave it open whose lines are whose
    tokens = sum(map(len, RECORDING["texts"])) - len(RECORDING["texts"])
    assert sum(learned) > 0.9 * tokens


def replay(patch: pytest.MonkeyPatch, proposer: Any, model: Any, call: dict[str, Any], given: Any) -> None:
    """One call, with the drafts that the requests got then."""

    def draft(requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        known = [request.tokens for request in requests]
        assert known == [text for text, new in zip(call["texts"], call["sampled"], strict=True) if new]
        return [chain(text[-1], tokens) for text, tokens in zip(known, given, strict=True)]

    patch.setattr(proposer._drafter, "draft", draft)
    for said in call["said"]:
        model.compute_logits(torch.nn.functional.one_hot(torch.tensor(said), V).float())
    ids = np.zeros((len(call["texts"]), 160), np.int32)
    for row, text in enumerate(call["texts"]):
        ids[row, : len(text)] = text
    lengths = np.array([len(text) for text in call["texts"]])
    assert proposer.propose(call["sampled"], lengths, ids) == call["drafts"]


def test_the_recording_has_what_it_is_for() -> None:
    """Rows that join and leave, prompts in parts, drafts that were accepted, rejected and cut, equal texts."""
    calls = RECORDING["calls"]
    assert len({len(call["sampled"]) for call in calls}) == 3
    assert any([] in call["sampled"] and any(call["sampled"]) for call in calls)
    assert max(len(new) for call in calls for new in call["sampled"]) > 2
    assert RECORDING["texts"][0] == RECORDING["texts"][2][: len(RECORDING["texts"][0])]
