"""The blocks of Python in the README and of the engine, run as they are printed: texts are plain decoding's."""

import json
import os
import re
from pathlib import Path

import pytest
from documents import README, ROOT, blocks
from forks import needs_fork, run_in_a_child
from transformers import PreTrainedModel, PreTrainedTokenizerBase

TEMPLATE = "{{ messages[0]['content'] }}"
# Behind the README's, in the same child: how it decoded, and what plain decoding makes of the same prompt.
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
    "explained": found is None or found.explained, "warm table": stats.warm_table is not None,
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


@pytest.fixture
def own_model(shipped: tuple[PreTrainedModel, PreTrainedTokenizerBase], tmp_path: Path) -> Path:
    """A user's model in a folder, with a chat template."""
    for part in shipped:
        part.save_pretrained(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": TEMPLATE}))
    return tmp_path


@needs_fork
@pytest.mark.usefixtures("table_folder", "short_texts")
def test_the_readme_s_block_decodes_a_user_s_model_in_the_fastest_mode(own_model: Path) -> None:
    (block,) = blocks(README, "python")
    named, question = re.search(r'name = "(.*?)"', block.code), re.search(r'"content": "(.*?)"', block.code)
    assert named is not None
    assert question is not None
    code = block.code.replace(named[1], str(own_model))

    def as_printed() -> None:
        os.chdir(own_model)
        exec(code + AFTERWARDS, {})

    done = run_in_a_child(as_printed)
    assert done.returncode == 0, done.stderr
    *printed, found = done.stdout.splitlines()
    assert question[1] in printed[0]
    assert len("".join(printed[:-1])) > len(question[1]) + 20  # the text goes on behind the question
    assert re.search(r"\d+ tokens in \d+ steps, [\d.]+ tokens per step", printed[-1])
    expected = {"as by default": True, "mode": "auto", "fallback": None, "explained": True, "warm table": True}
    assert json.loads(found) == expected


@needs_fork
def test_the_engine_s_snippet_gives_the_texts_of_plain_decoding() -> None:
    (code,) = (block.code for block in blocks(ROOT / "docs" / "use.md", "python") if "lade.Engine(" in block.code)
    done = run_in_a_child(lambda: exec(code + AFTER_THE_ENGINE, {}))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"same": [True, False, True], "beginning": True}
