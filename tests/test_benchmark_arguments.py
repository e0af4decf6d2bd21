"""Wrong arguments of the scripts in benchmarks/: one sentence that names the option, before any work."""

from typing import Any

import accelerator
import attention
import beside_dejavuu
import beside_vllm
import dtypes
import figures
import fit
import pytest
import real_text
import record_demo
import rows
import serving
import several
import shares
import static_steps
from click.testing import CliRunner

OUT = "out.jsonl", "--venv", "venv"
WRONG: list[tuple[Any, list[str], str]] = [
    (accelerator, ["nowhere/at/all"], "'MODEL': path_or_name must be a folder"),
    (accelerator, ["stories260K", "--device", "abacus"], "'--device': device must be a device"),
    (accelerator, ["stories260K", "--dtype", "float7"], "'--dtype': 'float7' is not one of"),
    (attention, ["--device", "abacus"], "'--device': device must be a device"),
    (beside_dejavuu, [*OUT, "--model", "nowhere/at/all"], "'--model': path_or_name must be a folder"),
    (beside_dejavuu, [*OUT, "--model", "stories260K", "--suites", "gsm9k"], "'--suites': must be among"),
    (beside_vllm, [*OUT, "--model", "stories260K", "--methods", "wish"], "'--methods': must be among"),
    (dtypes, ["stories260K", "--dtypes", "float32,float7"], "'--dtypes': must be among"),
    (fit, ["texts", "--model", "nowhere/at/all"], "'--model': path_or_name must be a folder"),
    (real_text, ["out.jsonl", "--model", "nowhere/at/all"], "'--model': path_or_name must be a folder"),
    (record_demo, ["nowhere/at/all", "--out", "out"], "'[MODEL]': path_or_name must be a folder"),
    (record_demo, ["stories260K", "--out", f"{__file__}/out"], "--out must be in a folder that can be made"),
    (record_demo, ["--out", "nowhere"], "--out must be that of a recorded run where no MODEL is given"),
    (rows, ["stories260K", "--suite", "gsm9k"], "'--suite': 'gsm9k' is not one of"),
    (serving, ["--model", "nowhere/at/all"], "'--model': path_or_name must be a folder"),
    (serving, ["--only", "wish"], "'--only': must be among"),
    (several, ["--ranks", "two"], "'--ranks': must be integers of at least 2"),
    (several, ["--models", "wish"], "'--models': must be among"),
    (shares, ["--model", "nowhere/at/all"], "'--model': path_or_name must be a folder"),
    (static_steps, ["--device", "abacus"], "'--device': device must be a device"),
    (figures, ["wish"], "unexpected extra argument (wish)"),
]


@pytest.mark.parametrize(
    ("script", "arguments", "told"), WRONG, ids=[f"{script.__name__} {told.split()[0]}" for script, _, told in WRONG]
)
def test_wrong_arguments(script: Any, arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(script.main, arguments)
    assert result.exit_code == 2, result.output
    assert told in " ".join(result.stderr.split())
