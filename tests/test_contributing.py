"""The examples of the contributing page: each is added as the page says, and decodes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from documents import ROOT, blocks
from families import BRANCHABLE
from tiny import tiny_model, words
from torch import Tensor

import lade
from lade.applications.bench.method import MethodOptions
from lade.applications.bench.methods import METHODS

LENGTHS, NEW = (5, 9), 24
EXAMPLES = blocks(ROOT / "CONTRIBUTING.md", "python")


def example(mark: str) -> dict[str, Any]:
    """What the block with this mark defines."""
    (code,) = (block.code for block in EXAMPLES if mark in block.code)
    names: dict[str, Any] = {"__name__": "contributed"}
    exec(code, names)
    return names


def decoded(generate: Callable[..., Tensor], family: Any = BRANCHABLE[0]) -> bool:
    """Whether the text is plain decoding's."""
    model, given = tiny_model(family, "sdpa"), words(*LENGTHS) | {"max_new_tokens": NEW, "do_sample": False}
    return torch.equal(generate(model, **given), model.generate(**given))


def test_each_example_is_tested() -> None:
    assert len(EXAMPLES) == 4


def test_a_drafter_and_its_method() -> None:
    method = example("class RepeatDrafter")["Repeat"]()
    assert decoded(lambda model, **given: lade.generate(model, **given, method=method))
    assert lade.last_stats().proposed["repeat"] > lade.last_stats().accepted.get("repeat", 0) >= 0


def test_a_method_of_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(METHODS, "recent", raising=False)  # and what the example adds goes with it
    example('METHODS["recent"]')
    row = METHODS["recent"]
    assert decoded(lambda model, **given: row.factory(MethodOptions(budget=16, adapt=False))(model, **given))
    assert set(lade.last_stats().proposed) == {"recent"}


def test_a_family() -> None:
    family = example("from families import")["family"]
    assert family.model_type not in {known.model_type for known in BRANCHABLE}
    assert decoded(lambda model, **given: lade.generate(model, **given), family)
    assert lade.last_stats().fallback is None


def test_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"question": "What has keys and opens no door?", "answer": "piano"}]
    file = tmp_path / "data" / "riddles" / "riddles.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("LADE_DATA", str(tmp_path))
    suite = example("SUITE =")["SUITE"]
    (prompt,) = suite.load()
    assert prompt.text == rows[0]["question"]
    assert [suite.score(prompt, answer, False) for answer in ("a piano", "a map")] == [True, False]
