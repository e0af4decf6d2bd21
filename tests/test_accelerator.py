"""The script that measures an accelerator, and the one that simulates a step: dry runs on a CPU."""

import itertools
import json

import accelerator
import decoding_ways
import pytest
import ratios
import simulated_step
import static_steps
import varied_prompts
from click.testing import CliRunner

from lade.models import load


@pytest.mark.real
def test_a_dry_run_of_all_parts() -> None:
    sizes = ["--prompts", "2", "--prompt-tokens", "20", "--new-tokens", "12", "--contexts", "40", "--batch", "2"]
    arguments = ["stories260K", "--device", "cpu", "--dtype", "float32", "--small", "--json", *sizes]
    result = CliRunner().invoke(accelerator.main, arguments, catch_exceptions=False)
    found = json.loads(result.stdout)
    parts = ("speeds", "steps", "synchronisations", "rates", "rates of 2 rows", "memory")
    assert set(parts) <= set(found["seconds"])
    assert not [part for part in parts if isinstance(found[part], dict) and "error" in found[part]]
    assert [step["nodes"] for step in found["steps"]] == list(static_steps.NODES)
    assert all(step["whole_ms"] >= step["host_ms"] > 0 for step in found["steps"])
    for rows, part in ((1, "rates"), (2, "rates of 2 rows")):
        ways = {name: way for name, way in found[part].items() if name not in ("repetition", "over")}
        assert set(ways) == set(decoding_ways.WAYS) - ({"prompt_lookup"} if rows == 2 else set())
        assert found[part]["over"]["plain"]["plain"]["all"] == 1
        assert [way["error"] for way in ways.values()] == [None] * len(ways)
        assert all(set(way["alike"]) == {rows * 12} for way in ways.values())
        assert all(way.get("partings", []) == [None] * len(way.get("partings", [])) for way in ways.values())
        every = [stats for name in ways if "auto" in name for stats in ways[name]["stats"]]
        assert all(set(stats["attention"]) == {"static"} and not stats["not_static"] for stats in every)
        assert {stats["mean_forward_tokens"] for stats in ways["auto, one token"]["stats"]} == {1}
        assert all("device" in stats["proposed"] for stats in ways["auto, drafts of the device"]["stats"])


@pytest.mark.real
def test_static_steps_of_a_model_with_random_weights() -> None:
    arguments = ["--shape", "130M", "--device", "cpu", "--dtype", "float32", "--contexts", "32", "--json"]
    result = CliRunner().invoke(static_steps.main, arguments, catch_exceptions=False)
    found = json.loads(result.stdout)
    assert [(step["context"], step["nodes"]) for step in found["steps"]["SDPA with masks"]] == [(32, 1), (32, 64)]
    assert found["machine"]["weights_ms"] > 0


@pytest.mark.real
def test_a_simulated_step() -> None:
    result = CliRunner().invoke(simulated_step.main, ["--shape", "130M", "--contexts", "64"], catch_exceptions=False)
    found = json.loads(result.stdout)
    one, tree, fused, _ = found["steps"]
    assert one["kernels"] > 12 * 30
    assert fused["kernels"] < one["kernels"] / 2
    assert fused["most"]["index_copy_"] == 12 + 1, "one write per layer, and one for what is kept"
    assert fused["limit_ms"] < fused["device_ms"] < one["device_ms"] < tree["device_ms"] < 2 * one["step_ms"]
    assert found["assumed"]["bandwidth"] == 3e12


def test_a_part_that_fails_leaves_its_error() -> None:
    run = accelerator.Run(None, [], 1, [], 2, until=float("inf"))
    run.part("broken", lambda: [][0])
    run.until = 0.0
    run.part("late", lambda: 1)
    assert run.found["broken"] == {"error": "IndexError: list index out of range"}
    assert run.found["late"] == {"skipped": "no time was left"}


def test_prompts_have_one_length_and_both_ends_of_the_chat_template() -> None:
    _, tokenizer = load("stories260K")
    plain = list(itertools.islice(varied_prompts.candidates(tokenizer, 40), 2))
    tokenizer.chat_template = "Now, {% for message in messages %}{{ message.content }}{% endfor %} Well?"
    asked = list(itertools.islice(varied_prompts.candidates(tokenizer, 40), 2))
    assert [len(prompt) for prompt in plain + asked] == [40] * 4
    assert plain[0] != plain[1]
    texts = [tokenizer.decode(prompt, skip_special_tokens=True) for prompt in plain + asked]
    ends = [(text.startswith("Now, "), text.endswith(" Well?")) for text in texts]
    assert ends == [(False, False)] * 2 + [(True, True)] * 2


def test_prompts_after_which_a_text_is_varied_come_first() -> None:
    texts = {1: [5] * 40, 2: list(range(40)), 3: [6] * 40, 4: list(range(9))}
    asked = list[int]()

    def decode(prompt: list[int]) -> list[int]:
        asked.append(prompt[0])
        return texts[prompt[0]]

    prompts = [[number] for number in texts]
    assert varied_prompts.varied(prompts, 1, decode) == [[2]]
    assert asked == [1, 2], "no more than are needed"
    assert varied_prompts.varied(prompts, 3, decode) == [[2], [4], [1]]


def test_ratios_are_per_prompt_and_those_of_varied_ones_apart() -> None:
    ways = {
        "plain": {"tokens_per_second": [10.0, 10.0, 20.0]},
        "auto, one token": {"tokens_per_second": [20.0, 40.0, 40.0]},
        "auto": {"tokens_per_second": [60.0, 80.0], "stats": [{"tokens_per_step": 4.0}, {"tokens_per_step": 2.0}]},
        "broken": {"tokens_per_second": []},
    }
    found = ratios.over(ways, [[0.1, 0.3], [0.1, None], [0.0, 0.0]])
    assert found["auto"]["plain"] == {"all": 7, "varied": 8}
    assert found["auto"]["auto, one token"] == {"all": 2.5, "varied": 2}
    assert found["auto"]["of tokens per step"] == (3 / 4 + 2 / 2) / 2
    assert found["broken"]["plain"] == {"all": None, "varied": None}
