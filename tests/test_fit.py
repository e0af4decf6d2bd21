"""The script that fits priors, in small."""

from pathlib import Path

import fit
import pytest
from click.testing import CliRunner

from lade.applications.bench.prompts import Prompt
from lade.memory.stages import NAMES


@pytest.mark.usefixtures("table_folder", "short_texts")
def test_texts_are_recorded_once_and_priors_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = {"stories": [Prompt(0, ("Once upon a time",)), Prompt(1, ("Tom had a big red ball.",))]}
    monkeypatch.setattr(fit, "chosen", lambda half, number: prompts)
    monkeypatch.setattr(fit, "BUDGETS", (8,))
    arguments = [str(tmp_path / "texts"), "--model", "stories260K", "--dtype", "float32", "--tokens", "24"]
    first = CliRunner().invoke(fit.main, arguments, catch_exceptions=False).stdout
    monkeypatch.setattr(fit, "recorded", None)
    again = CliRunner().invoke(fit.main, arguments, catch_exceptions=False).stdout
    lines = again.splitlines()
    assert first.endswith(again)
    names = [line.partition(":")[0] for line in lines]
    assert names[:4] == ["cold, new 8", "cold, kept 8", "warm, new 8", "warm, kept 8"]
    assert names[5:] == [*NAMES]
    before, after = (float(part.split()[-1]) for part in lines[4].split(", "))
    assert after < before
    recordings = fit.load(tmp_path / "texts")
    texts = [fit.replayed(recordings, "cold", kept, 8, None)[1] for kept in (False, True)]
    assert [len(part) for part in texts] == [2, 1]  # weights learn on from text to text
    assert sum(map(len, texts[0])) == len(texts[1][0])
