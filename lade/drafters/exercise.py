"""Calls every compiled function of the engine with the arguments that decoding gives it, so that it is compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lade.config.settings import LookaheadConfig
from lade.core.readout import read_out
from lade.core.request import Request, Verdict
from lade.drafters.blend import BlendDrafter
from lade.memory.corpora import corpus_of
from lade.memory.pools import fresh_pool
from lade.target.fused.loops import exercise as exercise_loops
from lade.target.fused.products import exercise as exercise_products
from lade.target.fused.stacked import exercise as exercise_stack
from lade.target.rowloops import exercise as exercise_attention
from lade.weights.blockloops import exercise as exercise_blocks


class _Nothing:
    """What a model predicts that finds every token likely: one line per node."""

    def greedy(self, slot: int, node: int) -> int:
        return node % 4

    def likeliest(self) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.tile(np.arange(4, dtype=np.int32), (64, 1))
        return tokens, np.full(tokens.shape, 0.25, np.float32)

    def lines_of(self, slot: int, nodes: Any) -> list[int]:
        return [*nodes]


def exercise() -> None:
    """Call every entry with the arguments that decoding gives it."""
    settings = LookaheadConfig().settled()
    pool = fresh_pool()
    drafter = BlendDrafter(settings, 32, pool=lambda tenant: pool)
    requests = [Request(row, [0, 1, 2, 3] * 2, 4, 64, reference=[0, 1, 2, 3]) for row in range(2)]
    for request in requests:
        drafter.start(request)
    for rows in (requests[:1], requests, requests[::-1]):
        drafts = drafter.draft(rows, [16] * len(rows))
        for request in rows:
            request.tokens.append(1)
        drafter.observe(rows, drafts, [Verdict([0], [1])] * len(rows), _Nothing())
    pool.table.resize(2)
    corpus_of([[0, 1, 0]])
    for precision in (torch.float32, torch.bfloat16):
        read_out(torch.zeros(1, 32, dtype=precision), 32, 8, np.ones(1, np.float32))
    exercise_loops()
    exercise_products()
    exercise_blocks()
    exercise_attention()
    exercise_stack()
