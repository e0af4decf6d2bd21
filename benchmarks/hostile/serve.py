"""Comparing the answers of a server with plain decoding of each request alone.

Requests arrive at random, stream or not, and some clients go away. Nothing of them may be left in the engine.
"""

from __future__ import annotations

from crowds import crowd, differences, drawn, expected
from served import serving

import lade
from hostile.case import Case
from hostile.verdict import CaseVerdict


def run(case: Case, verdict: CaseVerdict) -> None:
    pair = lade.models.load(case.model, dtype="float32")
    draws = case.draws("serve")
    asked = [drawn(draws, case.new_tokens) for _ in range(case.requests)]
    config = lade.LookaheadConfig(**case.config)
    room = 2 * case.requests
    with serving(pair, config=config, slots=case.slots, waiting=room, tenant_pools=draws.random() < 0.5) as served:
        tallies = served.noted_tallies()
        answers = served.run(lambda: crowd(served, asked))
        served.settled()
        for each, found in zip(asked, answers, strict=True):
            verdict.differences += differences(each, found, expected(served, each.fields))
    verdict.calls = verdict.native = sum(each.fields.get("n", 1) for each in asked)
    verdict.tokens = verdict.native_tokens = sum(emitted for emitted, _ in tallies)
    verdict.accepted = sum(tally.accepted.total() for _, tally in tallies)
    verdict.steps = sum(tally.lengths.total() for _, tally in tallies)
