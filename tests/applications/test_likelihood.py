"""`lade likelihood`: the mean is the model's own, costs are counted per way, and bad input is named."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from stories import PROMPTS
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lade.applications.likelihood import compare, summaries, ways
from lade.applications.likelihood_command import command
from lade.models.shipped import STORIES

Story = tuple[PreTrainedModel, PreTrainedTokenizerBase]


def test_three_ways_in_turn(shipped: Story) -> None:
    """A clock that moves by one per look: every run takes a second."""
    model, tokenizer = shipped
    draft = copy.deepcopy(model)
    noise = torch.randn(draft.lm_head.weight.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        draft.lm_head.weight.copy_(noise / 2)
    prompts = [(name, tokenizer(text, return_tensors="pt").input_ids) for name, text in enumerate(PROMPTS[:2])]
    seconds = iter(range(100))
    progress: list[tuple[int, int]] = []
    writers = ways(model, draft, 3, {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None})
    runs = compare(model, prompts, writers, 0, lambda *at: progress.append(at), lambda: float(next(seconds)))
    assert [(run.way, run.prompt_id) for run in runs] == [
        (way, name) for name in (0, 1) for way in ("draft", "target", "speculative")
    ]
    assert progress[-1] == (6, 6)
    by_way = {standing.way: standing for standing in summaries(runs)}
    assert all(standing.tokens_per_second == 12 and standing.latency == 1 for standing in by_way.values())
    assert all(standing.peak_bytes > 0 for standing in by_way.values())
    assert by_way["target"].log_likelihood == pytest.approx(by_way["speculative"].log_likelihood, abs=1e-5)
    assert by_way["draft"].log_likelihood < by_way["target"].log_likelihood


def run(*given: object) -> Result:
    return CliRunner().invoke(command, [str(item) for item in given])


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS[:2]))
    return path


def test_the_command(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    result = run(
        *(STORIES, "--draft", STORIES, "--prompts", prompts, "--max-new-tokens", 8, "--out", out),
        *("--threads", 1, "--temperature", 0.8),
    )
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert [way["way"] for way in found["ways"]] == ["draft", "target", "speculative"]
    assert all(math.isfinite(way["log_likelihood"]) and way["log_likelihood"] < 0 for way in found["ways"])
    assert len(found["runs"]) == 6
    assert found["about"]["temperature"] == 0.8
    assert "log-likelihood" in result.stdout


def test_bad_input_is_named(prompts: Path, tmp_path: Path) -> None:
    base = (STORIES, "--draft", STORIES, "--prompts")
    assert "missing.jsonl" in run(*base, tmp_path / "missing.jsonl").stderr
    assert (
        "--out must be in a folder that exists, got"
        in run(*base, prompts, "--out", tmp_path / "no" / "report.json").stderr
    )
    assert "Invalid value for '--draft-tokens'" in run(*base, prompts, "--tokens", 0).stderr
    assert "nowhere" in run(STORIES, "--draft", tmp_path / "nowhere", "--prompts", prompts).stderr
