"""The experiments of the documents: their methods and prompts exist. All documents have tests of their options."""

import re
from pathlib import Path

from lade.applications.bench.contenders import contenders
from lade.applications.bench.methods import MethodOptions
from lade.applications.bench.prompts import read_prompts

DOCS = Path(__file__).parents[1] / "docs"


def test_methods_and_prompts_exist() -> None:
    text = (DOCS / "experiments.md").read_text(encoding="utf-8")
    specs = re.findall(r"--methods (\S+)", text.replace("widths=...", "widths=2"))
    assert len(specs) > 5
    for spec in specs:
        contenders(spec.strip("`"), MethodOptions(draft="a draft", skip="1-2/3"))
    assert set(re.findall(r"--prompts (\S+)", text)) == {"docs/experiments/prompts.jsonl"}
    assert len({prompt.text for prompt in read_prompts(DOCS / "experiments" / "prompts.jsonl")}) == 24
