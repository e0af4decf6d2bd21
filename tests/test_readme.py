"""The README's snippets, run as they are printed."""

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


# The same for the engine's snippet.
AFTER_THE_ENGINE = """
import json
import torch

plain = []
for seed, prompt in enumerate(prompts):
    torch.manual_seed(seed)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    plain.append(model.generate(ids, max_new_tokens=40, do_sample=True)[0].tolist())
print(json.dumps({
    "same": [request.tokens == text for request, text in zip(requests, plain)],
    "beginning": requests[1].tokens == plain[1][: len(requests[1].tokens)],
}))
"""


def snippet(number: int) -> str:
    return re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[number]


@needs_fork
def test_the_first_snippet_runs_as_printed_in_the_fastest_mode(tmp_path: Path) -> None:
    code = snippet(0)

    def as_printed() -> None:
        os.chdir(tmp_path)
        exec(code + AFTERWARDS, {})

    done = run_in_a_child(as_printed)
    assert done.returncode == 0, done.stderr
    *printed, found = done.stdout.splitlines()
    prompt = re.search(r'tokenizer\("(.*?)"', code)
    assert prompt is not None
    assert printed[0].endswith(prompt[1])
    assert len(printed) > 3  # the text goes on behind the prompt
    assert re.search(r"\d+ tokens in \d+ steps, [\d.]+ tokens per step", printed[-1])
    expected = {"as by default": True, "mode": "auto", "fallback": None, "explained": True}
    assert json.loads(found) == expected


@needs_fork
def test_the_engine_s_snippet_gives_the_texts_of_plain_decoding() -> None:
    code = snippet(1)
    done = run_in_a_child(lambda: exec(code + AFTER_THE_ENGINE, {}))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"same": [True, False, True], "beginning": True}
