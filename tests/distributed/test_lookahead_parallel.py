"""Lookahead parallelism: the text of one process on all ranks, from parts of trees and one exchange a step."""

from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from forks import needs_fork
from tiny import own_llama, words

import lade

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24}
SAMPLED: dict[str, Any] = {"do_sample": True, "max_new_tokens": 24, "top_k": 0, "repetition_penalty": 1.2}


def config(mode: str, workers: int, **more: Any) -> lade.LookaheadConfig:
    return lade.LookaheadConfig(mode=mode, workers=workers, timeout=30, **more)


def texts(model: Any, settings: lade.LookaheadConfig | None) -> list[Any]:
    found = []
    for lengths in ((9,), (4, 11, 7)):
        for arguments in (GREEDY, SAMPLED):
            torch.manual_seed(5)
            inputs = words(*lengths) | arguments
            text = model.generate(**inputs) if settings is None else lade.generate(model, **inputs, config=settings)
            found += [text.tolist(), torch.rand(1).item()]  # and where the generator is left
    return found


@pytest.mark.real
@needs_fork
@pytest.mark.parametrize("number", [2, 3])
def test_texts(tmp_path: Path, number: int) -> None:
    model = own_llama()

    def work(rank: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for mode in ("auto", "lookahead"):
            for adapt in (True, False):
                found[f"{mode} {adapt}"] = texts(model, config(mode, number, adapt=adapt))
                assert lade.last_stats().fallback is None
                assert adapt or lade.last_stats().accepted_tokens > 0  # how much is drafted is a matter of time
        return found

    found = ranks.run(tmp_path, number, work)
    plain = texts(model, None)
    for each in found:
        for name, value in each.items():
            assert value == plain, name
