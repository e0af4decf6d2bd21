"""The README's first snippet, run as it is printed."""

import json
import os
import re
from pathlib import Path

from forks import needs_fork, run_in_a_child

README = Path(__file__).parents[1] / "README.md"
# Behind the snippet, in the same child: how it decoded, and what plain decoding makes of the same prompt.
AFTERWARDS = """
import json
from lade.measure.audit import parting
from lade.config.default import default_config
from lade.config.settings import LookaheadConfig

stats, settings = lade.last_stats(), default_config()
lade.restore_all()
plain = model.generate(**inputs, max_new_tokens=output.shape[1] - inputs["input_ids"].shape[1])
found = parting(model, plain[0], output[0], inputs["input_ids"].shape[1])
print(json.dumps({
    "as by default": settings == LookaheadConfig(), "mode": settings.settled().mode, "fallback": stats.fallback,
    "explained": found is None or found.explained,
}))
"""


def first_snippet() -> str:
    snippet = re.search(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert snippet is not None
    return snippet[1]


@needs_fork
def test_the_first_snippet_runs_as_printed_in_the_fastest_mode(tmp_path: Path) -> None:
    code = first_snippet()

    def snippet() -> None:
        os.chdir(tmp_path)
        exec(code + AFTERWARDS, {})

    done = run_in_a_child(snippet)
    assert done.returncode == 0, done.stderr
    *printed, found = done.stdout.splitlines()
    prompt = re.search(r'tokenizer\("(.*?)"', code)
    assert prompt is not None
    assert printed[0].endswith(prompt[1])
    assert len(printed) > 3  # the text goes on behind the prompt
    assert re.search(r"\d+ tokens in \d+ steps, [\d.]+ tokens per step", printed[-1])
    expected = {"as by default": True, "mode": "auto", "fallback": None, "explained": True}
    assert json.loads(found) == expected
