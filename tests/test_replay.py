"""Replays of recorded texts take the steps that decoding takes."""

from pathlib import Path

import pytest
import replay
import torch
from stories import PROMPTS

import lade
from lade.drafters.blend import BlendDrafter
from lade.models import load

COLD = ("suffix", "window", "recycled", "recent")


@pytest.mark.parametrize("budget", [4, 24])
def test_a_replay_takes_the_steps_of_decoding(budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without fused layers: a recording holds the ranks that transformers' layers give to nearly equal logits."""
    monkeypatch.setattr("lade.target.probe.can_fuse", lambda model: False)
    model, tokenizer = load("stories260K", dtype="float32")
    recorder = replay.Recorder(model, 32)
    config = lade.LookaheadConfig(budget=budget, adapt=False, sources=COLD)
    recordings = [recorder.record("stories", tokenizer(text).input_ids) for text in PROMPTS[:2]]
    for recording in recordings:
        while replayed(recording, config, budget) and recording.missing:
            recorder.fill(recording)
    path = tmp_path / "recordings"
    replay.save(recordings, path)
    for recording in replay.load(path):
        found, ids = replayed(recording, config, budget), torch.tensor([recording.tokens[: recording.prompt_length]])
        text = lade.generate(model, input_ids=ids, do_sample=False, max_new_tokens=32, config=config)
        stats = lade.last_stats()
        assert stats is not None
        assert text[0].tolist() == recording.tokens
        assert not recording.missing
        assert (found.new_tokens, found.steps) == (stats.new_tokens, stats.steps)
        assert found.forward_tokens == stats.forward_tokens


def replayed(recording: replay.Recording, config: lade.LookaheadConfig, budget: int) -> replay.Count:
    count = replay.Count()
    replay.replay(recording, BlendDrafter(config.settled(), budget), count)
    return count
