"""Where drafts are worth nothing, lade hardly looks for any: random weights, counted in steps and not in seconds."""

import copy
import json
import sys
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from costs import fix_costs
from families import BY_NAME
from tiny import words
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import lade
from lade.pace.rest import REST as POLICY
from lade.target.outputs import Outputs

OVERHEAD, REST = 0.0625, 12  # of a look, over a step of one token; steps that rest after it
NEW_TOKENS = 160


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every look takes as long; which nodes the drafter read the likeliest tokens after, to learn."""
    lines_of, read = Outputs.lines_of, list[int]()

    def noted(self: Outputs, slot: int, nodes: Sequence[int]) -> list[int]:
        read.extend(nodes)
        return lines_of(self, slot, nodes)

    monkeypatch.setattr(Outputs, "lines_of", noted)
    fix_costs(monkeypatch, look=OVERHEAD)
    return read


def random_model(vocabulary: int) -> PreTrainedModel:
    config = AutoConfig.for_model("llama", **{**BY_NAME["llama"].config, "vocab_size": vocabulary})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval()
    model.generation_config.eos_token_id = None
    return model


@pytest.mark.parametrize(("vocabulary", "temperature"), [(32_000, 1.5), (32_000, 1.0), (4_000, 1.0)])
def test_where_nothing_is_found_most_steps_do_not_look(vocabulary: int, temperature: float, looked: list[int]) -> None:
    torch.manual_seed(0)
    lade.generate(
        random_model(vocabulary),
        **words(30),
        max_new_tokens=NEW_TOKENS,
        do_sample=True,
        temperature=temperature,
        top_k=0,
    )
    stats = lade.last_stats()
    assert stats is not None
    rested = stats.decisions["drafts not looked for"]
    again = 2 * POLICY.retries_after_repeat  # a token that came twice by chance lets some steps learn
    assert stats.steps - rested <= POLICY.patience + again + (stats.steps - POLICY.patience) / (REST + 1) + 1
    assert rested > 0.6 * stats.steps
    assert stats.mean_forward_tokens < 1.05
    assert len(looked) <= POLICY.patience + again  # steps that rest learn nothing, nor looks between them


def test_the_law_can_be_measured() -> None:
    """The command runs; whether the law holds is no matter of a busy machine and eight tokens."""
    spec = spec_from_file_location("never_slower", Path(__file__).parent.parent / "benchmarks" / "never_slower.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["never_slower"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments = ["--settings", "code-512-1", "--prompts", "2", "--new-tokens", "8", "--threads", "1", "--json"]
    result = CliRunner().invoke(module.main, arguments)
    found = json.loads(result.stdout)
    assert result.exit_code == (not found["settings"][0]["holds"])
    assert found["settings"][0] | {"setting": "code-512-1", "prompts": 2, "identical": 2} == found["settings"][0]
    wrong = CliRunner().invoke(module.main, ["--settings", "code-7"])
    assert wrong.exit_code == 2
    assert "must be of 130M-32000-1, " in wrong.output
