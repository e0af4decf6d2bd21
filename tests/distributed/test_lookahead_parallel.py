"""Lookahead parallelism: the text of one process on all ranks, from parts of trees and one exchange a step."""

from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from families import BY_NAME
from forks import needs_fork
from tiny import own_llama, tiny_model, words

import lade
from lade.distributed import memory
from lade.distributed.group import group_of
from lade.distributed.steps import StepTimes
from lade.distributed.target import SharedTarget
from lade.distributed.tried import Way
from lade.target.model import HFTarget

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
def test_the_steps_of_the_paper(tmp_path: Path) -> None:
    """Window 5/15/15 over four ranks: as many steps as over one, each within the bound of the paper's split."""
    model, sizes = own_llama(), {"ngram": 5, "window": 15, "guesses": 15}

    def steps(workers: int) -> Any:
        lade.generate(model, **words(9), **GREEDY, config=config("lookahead", workers, adapt=False, **sizes))
        return lade.last_stats().steps, lade.last_stats().mean_forward_tokens

    found = ranks.run(tmp_path, 4, lambda rank: steps(4))
    alone, nodes = steps(1)
    assert [each[0] for each in found] == [alone] * 4
    assert max(each[1] for each in found) <= 15 + -(-3 * 15 // 4) + -(-4 * 15 // 4) + 5 < nodes + 10


@pytest.mark.real
@needs_fork
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["llama", "mistral-sliding"])
def test_paths_that_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, attention: str) -> None:
    """Keys and values of accepted tokens come from other ranks: nothing is computed again, with packed and padded rows,
    and beyond a sliding window."""
    monkeypatch.setattr(StepTimes, "begin", lambda self, tokens, rows, lacks: Way(2, sends=True))
    model = tiny_model(BY_NAME[family], attention)
    begun: list[int] = []
    original = SharedTarget._compute

    def compute(self: SharedTarget, slots: Any, share: Any) -> Any:
        begun.append(sum(part.lacking for part in self._parts.values()))
        return original(self, slots, share)

    monkeypatch.setattr(SharedTarget, "_compute", compute)

    def work(rank: int) -> Any:
        found = texts(model, config("auto", 2, adapt=False))
        return found, lade.last_stats().accepted_tokens, group_of(30).exchanges - len(begun), sum(begun)

    ran = ranks.run(tmp_path, 2, work)
    plain = texts(model, None)
    for found, accepted, further, lacking in ran:
        assert found == plain
        assert accepted > 0
        assert further > 4 * 5  # beside one exchange a step, and at most five as each call begins
        assert not lacking


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


@pytest.mark.real
@needs_fork
def test_corpora_that_differ(tmp_path: Path) -> None:
    """All ranks draft alike: where one rank's file is another one, none drafts from it."""
    model, sources = own_llama(), ("corpus", "suffix")
    plain = texts(model, None)
    for rank, corpus in enumerate(([plain[0][0]], [[1, 2]])):
        lade.Corpus(corpus).save(tmp_path / f"own-{rank}")
    for name, target in (("same-0", "own-0"), ("same-1", "own-0"), ("other-0", "own-0"), ("other-1", "own-1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "corpus").symlink_to(tmp_path / target)

    def work(rank: int, kind: str) -> Any:
        monkeypatch = pytest.MonkeyPatch()
        monkeypatch.chdir(tmp_path / f"{kind}-{rank}")
        settings = config("auto", 2, adapt=False, sources=sources, corpus="corpus")
        lade.generate(model, **words(9), **GREEDY, config=settings)
        steps = lade.last_stats().steps
        return texts(model, settings), steps

    same, other = (
        ranks.run(tmp_path / f"{kind}-0", 2, lambda rank, kind=kind: work(rank, kind)) for kind in ("same", "other")
    )
    assert [found for found, _ in (*same, *other)] == [plain] * 4
    assert [steps for _, steps in same] == [same[0][1]] * 2
    assert [steps for _, steps in other] == [other[0][1]] * 2
    assert same[0][1] < other[0][1]


class Puts(list[int]):
    """A streamer."""

    def put(self, tokens: torch.Tensor) -> None:
        self.extend(tokens.tolist())

    def end(self) -> None:
        self.append(-1)


@pytest.mark.real
@needs_fork
@pytest.mark.parametrize("mode", ["auto", "lookahead"])
@pytest.mark.parametrize("first", [0, 4, 10])
def test_rank_0_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, mode: str) -> None:
    """From its beginning, or after some shared steps: texts, streams and caches of all ranks, and where generators are
    left, are those of plain decoding; the others compute nothing before they need their cache."""
    if not first:
        monkeypatch.setattr(memory.Memory, "alone", True)
    else:
        monkeypatch.setattr(memory, "ENOUGH", first)
        monkeypatch.setattr(memory.Memory, "_worth", lambda self: False)
    model = own_llama()
    computed: list[int] = []
    prefill, compute = HFTarget.prefill, HFTarget.compute
    monkeypatch.setattr(HFTarget, "prefill", lambda *given: (computed.append(1), prefill(*given))[1])
    monkeypatch.setattr(HFTarget, "compute", lambda *given: (computed.append(1), compute(*given))[1])

    def streamed(settings: lade.LookaheadConfig | None) -> Any:
        streamer = Puts()
        arguments = words(9) | GREEDY | {"streamer": streamer}
        model.generate(**arguments) if settings is None else lade.generate(model, **arguments, config=settings)
        return streamer

    def cached(settings: lade.LookaheadConfig | None) -> Any:
        arguments = words(4, 11) | GREEDY | {"return_dict_in_generate": True}
        found = model.generate(**arguments) if settings is None else lade.generate(model, **arguments, config=settings)
        layer = found.past_key_values.layers[-1]
        return found.sequences.tolist(), layer.keys[1, 0, -9:, 0].tolist(), layer.values.shape

    lade.generate(model, **words(4, 11), **GREEDY)  # the self-probe computes, too

    def work(rank: int) -> Any:
        settings = config(mode, 2)
        computed.clear()
        found = texts(model, settings), streamed(settings)
        steps = len(computed)
        return *found, cached(settings), steps, lade.last_stats().fallback

    ran = ranks.run(tmp_path, 2, work)
    plain, stream, (sequences, keys, shape) = texts(model, None), streamed(None), cached(None)
    for found, puts, (rows, ends, size), _, fallback in ran:
        assert fallback is None
        assert found == plain
        assert puts == stream
        assert rows == sequences
        assert ends == pytest.approx(keys, abs=1e-5)
        assert size == list(shape)
    assert ran[1][3] < (ran[0][3] if first else 1)
