"""The worst possible drafter: confident drafts that are never accepted. Measures the cost of rejected drafts.

Knows how mode auto drafts; nothing of prompts, timing or reports.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import lade
from lade.applications.bench.method import Decode, MethodOptions
from lade.base.shown import invalid
from lade.core.drafter import Drafter
from lade.drafters.blend import BlendDrafter
from lade.drafters.factory import pace_for
from lade.entry.reference import references_of
from lade.memory.backoff import backoff
from lade.memory.predictions import TOP
from lade.memory.warmtable import WarmTable, no_contexts
from lade.target.call import Call
from lade.target.model import HFTarget

CONFIDENT = [0.9 * 0.1**rank for rank in range(TOP)]  # the probabilities of its tokens


def wrong_table(text: Sequence[int], vocabulary: int) -> WarmTable:
    """Predicts only tokens that do not occur in a text."""
    never = sorted(set(range(vocabulary)) - set(text))
    tokens = torch.tensor([[never[(entry + rank) % len(never)] for rank in range(TOP)] for entry in range(vocabulary)])
    probabilities = torch.tensor(CONFIDENT).expand(vocabulary, TOP).contiguous()
    return WarmTable(tokens.int(), probabilities, no_contexts(TOP), seconds=0.0)


class OnlyWrong:
    """Drafts only tokens that do not occur in a text, as `mode="auto"` drafts from a warm table."""

    likeliest = True

    def __init__(self, text: Sequence[int], config: lade.LookaheadConfig) -> None:
        self.text, self.config = text, config

    def check(self, target: Any) -> None:
        """Any model is valid."""

    def reason(self, call: Call) -> str | None:
        return None

    def drafter(self, call: Call, target: HFTarget) -> Drafter:
        settings = self.config.settled()
        pace = pace_for(call.model, settings, packed=target.packed)
        table = backoff(wrong_table(self.text, call.text_config.vocab_size), sharpness=1.0)
        return BlendDrafter(settings, pace.limit, lambda inverse_temperature: table, pace=pace)


def wrong(options: MethodOptions) -> Decode:
    """`reference` must be plain decoding's text."""
    if options.reference != "equal":
        raise invalid("reference", "'equal', because drafts from another text could be right", options.reference)
    config = lade.LookaheadConfig(mode="auto", sources=("warm",), budget=options.budget)

    def decode(model: PreTrainedModel, reference: Sequence[Any] = (), **arguments: Any) -> Tensor:
        text = list(chain.from_iterable(row or () for row in references_of(reference) or ()))
        with lade.lookahead(model, method=OnlyWrong(text, config)):
            sequences: Tensor = model.generate(**arguments)
            return sequences

    return decode
