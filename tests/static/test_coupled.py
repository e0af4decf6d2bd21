"""Drafts of the device that know the noise of sampling: the host's probabilities, and fewer steps."""

from typing import Any

import numpy as np
import pytest
import torch
from families import BY_NAME
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_model, words

import lade
from lade.core.noise import Noise
from lade.memory import coupling
from lade.memory.context import NOTHING
from lade.static.choices import NoiseRing
from lade.static.rounds.coupled import Coupled

SLOTS, VOCABULARY, INDICES = 3, 8, 6
ROWS = {0: 2, 2: 0}  # slot -> row of the noise


class Slots:
    """What a ring and its reader need to know of slots."""

    count, lengths = SLOTS, torch.zeros(SLOTS + 1)
    emitted = torch.tensor([7, 0, 11, 0])


def filled(noise: Noise) -> NoiseRing:
    ring = NoiseRing(Slots(), VOCABULARY, INDICES)  # type: ignore[arg-type]
    for slot, row in ROWS.items():
        ring.fill(noise, slot, row, int(Slots.emitted[slot]), left=20)
    return ring


@given(seed=st.integers(0, 10_000), depth=st.integers(0, INDICES - 1), total=st.floats(0.01, 1.0))
def test_as_the_host(seed: int, depth: int, total: float) -> None:
    noise = Noise(3, torch.device("cpu"), torch.Generator().manual_seed(seed))
    ring, draws = filled(noise), np.random.default_rng(seed)
    tokens = torch.from_numpy(np.stack([draws.permutation(VOCABULARY)[:4] for _ in ROWS]))
    masses = torch.from_numpy(draws.dirichlet(np.ones(4), size=len(ROWS)).astype(np.float32)) * total
    found = Coupled(Slots(), ring)(torch.tensor([*ROWS]), depth, tokens, masses)  # type: ignore[arg-type]
    for line, (slot, row) in enumerate(ROWS.items()):
        own, shares = tokens[line].tolist(), masses[line].tolist()
        of_index = noise.at(int(Slots.emitted[slot]) + depth, VOCABULARY)[row].numpy()
        ints, numbers = np.array([0, 1], np.int32), np.concatenate([of_index] * coupling.COUPLED)
        coupling.couple(memoryview(ints), 0, memoryview(numbers), 0, own, shares, 4)
        expected = dict(zip(own, shares, strict=True))
        for token, share in zip(tokens[line].tolist(), found[line].tolist(), strict=True):
            assert share == pytest.approx(expected[token], rel=1e-4)


def test_tokens_without_noise_and_noise_of_zero() -> None:
    ring = filled(Noise(3, torch.device("cpu")))
    ring.values[:, 0, 2] = 0
    tokens, masses = torch.tensor([[NOTHING, VOCABULARY, 2, 3]]), torch.tensor([[0.0, 0.0, 0.5, 0.2]])
    found = Coupled(Slots(), ring)(torch.tensor([0]), 1, tokens, masses)  # type: ignore[arg-type]
    assert found[0].tolist() == pytest.approx([0, 0, 1, 0])


def test_no_predictions() -> None:
    ring = filled(Noise(3, torch.device("cpu")))
    tokens, masses = torch.full((2, 4), NOTHING), torch.zeros(2, 4)
    assert not Coupled(Slots(), ring)(torch.tensor([0, 2]), 0, tokens, masses).any()  # type: ignore[arg-type]


def steps_of(model: Any) -> int:
    """Of sampled texts that the device drafts."""
    config, steps = lade.LookaheadConfig(static=True, device_drafts=True, adapt=False, budget=12), 0
    for seed in range(2):
        torch.manual_seed(seed)
        lade.generate(model, **words(9, 6), do_sample=True, top_k=4, max_new_tokens=60, config=config)
        steps += lade.last_stats().steps
        assert set(lade.last_stats().proposed) == {"device"}
    return steps


def test_drafts_that_know_the_noise_take_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(BY_NAME["llama"], "sdpa", torch.float64)
    with_noise = steps_of(model)
    monkeypatch.setattr(Coupled, "__call__", lambda self, slots, depth, tokens, masses: masses)
    assert with_noise < 0.95 * steps_of(model)
