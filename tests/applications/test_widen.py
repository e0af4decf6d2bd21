"""`lade widen` from the command line: what it writes, and what it refuses."""

import errno
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from lade.applications.widen import SHAPES, command
from lade.models import load
from lade.models.shipped import FOLDER, STORIES
from lade.models.widen import widen

pytestmark = pytest.mark.usefixtures("one_thread")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in (*arguments, "--threads", 1)])


def test_the_written_model_is_labelled_and_loads_with_the_original_logits(tmp_path: Path) -> None:
    result = run(STORIES, tmp_path / "wide", "--hidden", 128, "--layers", 6, "--vocab", 600, "--positions", 1024)
    assert result.exit_code == 0, result.output
    note = (tmp_path / "wide" / "SOURCE.txt").read_text()
    assert "stories260K widened" in note
    assert "hidden 128, 6 layers, 8 heads / 4 KV, head 8, ffn 172, vocab 600, positions 1024" in note
    assert (FOLDER / STORIES / "SOURCE.txt").read_text() in note
    (wide, tokenizer), (model, _) = load(tmp_path / "wide"), load("stories260K")
    assert wide.config.lade_widened["hidden_size"] == 64
    ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
    torch.testing.assert_close(wide(ids).logits[..., :512], model(ids).logits, atol=1e-4, rtol=0)


def test_half_precision_is_written_where_asked(tmp_path: Path) -> None:
    assert run(STORIES, tmp_path / "wide", "--dtype", "bfloat16").exit_code == 0
    assert load(tmp_path / "wide")[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("shape", "count"), [("130M", 134_105_856), ("300M", 317_244_416), ("1B", 1_100_048_384), ("7B", 6_738_415_616)]
)
def test_named_shapes_have_the_stated_size(shape: str, count: int) -> None:
    sizes = {name.replace("num_layers", "num_hidden_layers"): size for name, size in SHAPES[shape].items()}
    with torch.device("meta"):
        assert LlamaForCausalLM(LlamaConfig(**sizes)).num_parameters() == count


def test_without_a_folder_the_model_is_built_checked_and_timed() -> None:
    result = run(STORIES, "--hidden", 128, "--layers", 6)
    assert result.exit_code == 0, result.output
    assert "hidden 128, 6 layers" in result.stdout
    assert "largest logit difference from the original: " in result.stdout
    assert re.search(r"a forward after 64 tokens: 1 tokens [\d.]+ ms, 16 tokens [\d.]+ ms, 64 tokens", result.stdout)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_with_other_logits_is_not_written(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(original: PreTrainedModel, **sizes: int) -> LlamaForCausalLM:
        wide = widen(original, **sizes)
        wide.model.layers[0].self_attn.q_proj.weight.mul_(1.5)
        return wide

    monkeypatch.setattr("lade.models.widen.widen", torch.no_grad()(broken))
    result = run(STORIES, tmp_path / "wide", "--hidden", 128, "--dtype", dtype)
    assert result.exit_code == 1
    assert re.search(
        r"logits differ by [\d.e+-]+ on average, rounding explains [\d.e+-]+; nothing is written", result.stderr
    )
    assert not any((tmp_path / "wide").iterdir())


def test_wrong_sizes_and_full_folders_are_refused(tmp_path: Path) -> None:
    result = run(STORIES, tmp_path / "wide", "--hidden", 32)
    assert result.exit_code == 2
    assert "hidden_size must be at least 64" in result.stderr
    (tmp_path / "wide" / "file").touch()
    assert "OUT must be a new or empty folder, got" in run(STORIES, tmp_path / "wide").stderr
    assert "OUT must be a folder that can be made, got" in run(STORIES, tmp_path / "wide" / "file").stderr
    assert "nowhere" in run(tmp_path / "nowhere", tmp_path / "other").stderr


def test_what_cannot_be_written_whole_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("transformers.PreTrainedTokenizerBase.save_pretrained", full)
    out = tmp_path / "wide"
    result = run(STORIES, out, "--hidden", 128)
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "Error: [Errno 28] No space left on device"
    assert list(out.iterdir()) == []
