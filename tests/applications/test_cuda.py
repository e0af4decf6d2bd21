"""The commands and the server on a CUDA device, each as a user starts it: nothing falls back, and texts are plain's.

`pytest -n 4 tests/applications/test_cuda.py`; `TEST_DEVICE=cpu` tries the file itself on a machine without a device.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from served import serving

from lade.models import load
from lade.models.shipped import STORIES

DEVICE = os.environ.get("TEST_DEVICE", "cuda")
ROOT = Path(__file__).parents[2]
LADE = [sys.executable, "-m", "lade"]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="no CUDA device"),
]
COMMANDS = {
    "minimal": [sys.executable, ROOT / "minimal.py", "--model", STORIES, "--max-new-tokens", "24"],
    "chat": [*LADE, "chat", STORIES, "--max-new-tokens", "24"],
    "warm": [*LADE, "warm", STORIES, "--max-new-tokens", "8"],
    "widen": [*LADE, "widen", STORIES, "--layers", "8"],
    "tune": [
        *LADE, "tune", STORIES, "--prompts", "prompts.jsonl", "--candidates", "auto:budget=4", "--repeats", "1",
        "--max-new-tokens", "8",
    ],
    "bench": [
        *LADE, "bench", STORIES, "--suite", "stories", "--n", "1", "--max-new-tokens", "24",
        "--methods", "plain,static,lookahead,auto,prompt_lookup", "--out", "out",
    ],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command(command: str, tmp_path: Path) -> None:
    environment = os.environ | {"USE_LADE": "1", "LOAD_LADE": "1", "LADE_CACHE": str(tmp_path / "cache")}
    lines = [f'{{"prompt": "One day, {name} had a dog"}}\n' for name in ("Tom", "Lily", "Ben", "Mia", "Anna", "Max")]
    (tmp_path / "prompts.jsonl").write_text("".join(lines))
    arguments = [*map(str, COMMANDS[command]), "--device", DEVICE, "--dtype", "float32"]
    done = subprocess.run(
        arguments, input="Once upon a time\n", cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "decodes plainly" not in said
    assert command != "minimal" or "texts identical:  yes" in said


@pytest.mark.parametrize("temperature", [0, 1])
def test_the_server(temperature: float) -> None:
    """Sampled texts are those of their seeds."""
    model, tokenizer = load(STORIES, dtype="float32", device=DEVICE)
    with serving((model, tokenizer), model=STORIES) as served:
        texts = [served.text("Once upon a time", temperature=temperature, seed=3, max_tokens=24) for _ in range(2)]
        assert texts[0] == texts[1] != ""
        assert served.service.engine.not_static is None or DEVICE == "cpu"
    if temperature == 0:
        ids = torch.tensor([tokenizer("Once upon a time")["input_ids"]], device=DEVICE)
        plain = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
        assert texts[0] in tokenizer.decode(plain[0], skip_special_tokens=True)
