"""Comparing the answers of a server with plain decoding of each request alone.

Requests arrive at random, stream or not, and some clients go away. Nothing of them may be left in the engine.
"""

from __future__ import annotations

from typing import Any

from crowds import Asked, crowd, differences, drawn, expected
from seeing import llava
from served import serving

import lade
from hostile.case import Case
from hostile.subjects import LLAVA
from hostile.verdict import CaseVerdict


def _loaded(name: str) -> tuple[Any, Any, Any]:
    """The model, its tokenizer, and the processor of one that reads images."""
    if name == LLAVA:
        return llava()
    return *lade.models.load(name, dtype="float32"), None


def run(case: Case, verdict: CaseVerdict) -> None:
    model, tokenizer, processor = _loaded(case.model)
    draws, asked = case.draws("serve"), list[Asked]()
    for _ in range(case.requests):
        earlier = None if processor is None else asked
        asked.append(drawn(draws, case.new_tokens, min(500, len(tokenizer)), earlier))
    config = lade.LookaheadConfig(**case.config)
    room = 2 * case.requests
    settings = {"slots": case.slots, "waiting": room, "tenant_pools": draws.random() < 0.5}
    with serving((model, tokenizer), config=config, processor=processor, **settings) as served:
        tallies = served.noted_tallies()
        answers = served.run(lambda: crowd(served, asked))
        served.settled()
        for each, found in zip(asked, answers, strict=True):
            verdict.differences += differences(each, found, expected(served, each.fields))
    verdict.calls = verdict.native = sum(each.fields.get("n", 1) for each in asked)
    verdict.tokens = verdict.native_tokens = sum(emitted for emitted, _ in tallies)
    verdict.accepted = sum(tally.accepted.total() for _, tally in tallies)
    verdict.steps = sum(tally.lengths.total() for _, tally in tallies)
