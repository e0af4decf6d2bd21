"""`lade widen` from the command line: what it writes, and what it refuses."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from transformers import LlamaConfig, LlamaForCausalLM

from lade.applications.widen import SHAPES, command
from lade.models import load
from lade.models.load import SHIPPED

pytestmark = pytest.mark.usefixtures("one_thread")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_the_written_model_is_labelled_and_loads_with_the_original_logits(tmp_path: Path) -> None:
    result = run(SHIPPED, tmp_path / "wide", "--hidden", 128, "--layers", 6, "--vocab", 600, "--positions", 1024)
    assert result.exit_code == 0, result.output
    note = (tmp_path / "wide" / "SOURCE.txt").read_text()
    assert "stories260K widened" in note
    assert "hidden 128, 6 layers, 8 heads / 4 KV, head 8, ffn 172, vocab 600, positions 1024" in note
    assert (SHIPPED / "SOURCE.txt").read_text() in note
    (wide, tokenizer), (model, _) = load(tmp_path / "wide"), load()
    assert wide.config.lade_widened["hidden_size"] == 64
    ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
    torch.testing.assert_close(wide(ids).logits[..., :512], model(ids).logits, atol=1e-4, rtol=0)


def test_half_precision_is_written_where_asked(tmp_path: Path) -> None:
    assert run(SHIPPED, tmp_path / "wide", "--dtype", "bfloat16").exit_code == 0
    assert load(tmp_path / "wide")[0].dtype == torch.bfloat16


@pytest.mark.parametrize(("shape", "count"), [("130M", 134_105_856), ("300M", 317_244_416), ("1B", 1_100_048_384)])
def test_named_shapes_have_the_stated_size(shape: str, count: int) -> None:
    sizes = {name.replace("num_layers", "num_hidden_layers"): size for name, size in SHAPES[shape].items()}
    with torch.device("meta"):
        assert LlamaForCausalLM(LlamaConfig(**sizes)).num_parameters() == count


def test_wrong_sizes_and_full_folders_are_refused(tmp_path: Path) -> None:
    result = run(SHIPPED, tmp_path / "wide", "--hidden", 32)
    assert result.exit_code == 1
    assert "hidden_size=32: at least 64" in result.stderr
    (tmp_path / "wide" / "file").touch()
    assert "a new or empty folder is needed" in run(SHIPPED, tmp_path / "wide").stderr
    assert "cannot be made" in run(SHIPPED, tmp_path / "wide" / "file").stderr
    assert "nowhere" in run(tmp_path / "nowhere", tmp_path / "other").stderr
