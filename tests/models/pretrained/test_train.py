"""The training command on a tiny corpus: it learns, resumes to the same weights, distils, and refuses what is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from transformers import LlamaForCausalLM

from lade.models import load
from lade.models.pretrained import train
from lade.models.pretrained.batches import Mixture, read_streams
from lade.models.pretrained.checkpoint import export
from lade.models.pretrained.documents import KINDS
from lade.models.pretrained.objectives import Distillation
from lade.models.pretrained.plan import REPEATS
from lade.models.pretrained.sizes import fresh_model
from lade.models.pretrained.tokenizer import load_tokenizer, train_tokenizer

TEXTS = [f'def times_{n}(number):\n    """{n} times the number."""\n    return {n} * number\n' for n in range(100)]
SETTINGS = [
    "--size",
    "tiny",
    "--device",
    "cpu",
    "--rows",
    "4",
    "--micro-rows",
    "2",
    "--length",
    "32",
    "--learning-rate",
    "0.01",
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    tokenizer = train_tokenizer(TEXTS, 300)
    tokenizer.save_pretrained(folder)
    ids = np.asarray([token for row in tokenizer(TEXTS)["input_ids"] for token in row], np.uint16)
    for kind in KINDS:
        np.save(folder / f"train-{kind}.npy", ids[: len(ids) // 2])
        np.save(folder / f"held_out-{kind}.npy", ids[len(ids) // 2 :])
    return folder


@pytest.fixture(scope="module")
def target(corpus: Path) -> Path:
    out = corpus / "target"
    assert run(corpus, out, "--steps", "30").exit_code == 0
    return out


def run(corpus: Path, out: Path, *arguments: str) -> Result:
    return CliRunner().invoke(train.main, ["--corpus", str(corpus), "--out", str(out), *SETTINGS, *arguments])


def logged(out: Path, name: str) -> list[float]:
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [row[name] for row in rows if name in row]


def weights(out: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(out / "checkpoint.pt", weights_only=True)["model"]
    return found


def test_training_learns(target: Path) -> None:
    losses = logged(target, "loss")
    assert len(losses) == 30
    assert losses[0] > 5.5  # log(300) is 5.7
    assert losses[-1] < 3
    assert logged(target, "held_out_loss")[-1] < 3


def test_what_was_run_is_written_down(target: Path) -> None:
    made = json.loads((target / "run.json").read_text())
    assert (made["steps"], made["tokens"], made["device"]) == (30, 30 * 4 * 32, "CPU")
    assert made["plan"]["size"] == "tiny"


def test_weights_are_exported_in_bfloat16(target: Path) -> None:
    model, tokenizer = load(target / "model")
    assert model.dtype is torch.bfloat16
    assert model.config.max_position_embeddings == 2048
    assert tokenizer("9")["input_ids"][0] == tokenizer.bos_token_id == model.config.eos_token_id == 0


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(corpus, tmp_path / "whole", "--steps", "6").exit_code == 0
    broken = train.Trainer._step

    def cut_off(self: train.Trainer, factor: float) -> torch.Tensor:
        if self._state.step == 3:
            raise KeyboardInterrupt
        return broken(self, factor)

    monkeypatch.setattr(train.Trainer, "_step", cut_off)
    assert run(corpus, tmp_path / "cut", "--steps", "6").exit_code != 0
    monkeypatch.undo()
    assert run(corpus, tmp_path / "cut", "--steps", "6", "--resume").exit_code == 0
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_a_time_budget_ends(corpus: Path, tmp_path: Path) -> None:
    result = run(corpus, tmp_path / "out", "--minutes", "0.005")
    assert result.exit_code == 0
    assert "tokens/s" in result.output
    assert logged(tmp_path / "out", "held_out_loss")


def test_a_run_may_go_on_from_other_weights(corpus: Path, target: Path, tmp_path: Path) -> None:
    assert run(corpus, tmp_path / "out", "--steps", "1", "--init", str(target / "model")).exit_code == 0
    assert logged(tmp_path / "out", "held_out_loss")[0] < 3


def distance(model: Path | LlamaForCausalLM, teacher: Path, corpus: Path) -> float:
    """Mean KL on held-out rows."""
    rows = Mixture(read_streams(corpus, "held_out"), REPEATS, seed=5).rows(0, 8, 33)
    measured = Distillation(load(teacher, dtype="float32")[0], share=1.0)
    with torch.no_grad():
        return float(measured(load(model, dtype="float32")[0] if isinstance(model, Path) else model, rows))


def test_distillation_brings_the_draft_nearer_to_its_teacher(corpus: Path, target: Path, tmp_path: Path) -> None:
    before = fresh_model("tiny", load_tokenizer(corpus).vocab_size)
    export(tmp_path / "before", before, load_tokenizer(corpus))
    asked = ["--steps", "20", "--init", str(tmp_path / "before"), "--teacher", str(target / "model")]
    assert run(corpus, tmp_path / "draft", *asked).exit_code == 0
    after = distance(tmp_path / "draft" / "model", target / "model", corpus)
    assert after < distance(before, target / "model", corpus) / 2
    assert abs(distance(target / "model", target / "model", corpus)) < 1e-5


def test_a_draft_starts_as_what_is_cut_out_of_its_teacher(corpus: Path, target: Path, tmp_path: Path) -> None:
    """Here it is as large as that, so next to nothing is lost."""
    asked = ["--steps", "1", "--teacher", str(target / "model"), "--learning-rate", "1e-6"]
    assert run(corpus, tmp_path / "draft", *asked).exit_code == 0
    fresh = distance(fresh_model("tiny", load_tokenizer(corpus).vocab_size), target / "model", corpus)
    assert distance(tmp_path / "draft" / "model", target / "model", corpus) < fresh / 10


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "exactly one of steps and minutes must be given"),
        (["--steps", "2", "--minutes", "1"], "exactly one of steps and minutes must be given"),
        (["--steps", "0"], "--steps"),
        (["--steps", "1", "--micro-rows", "3"], "micro_rows must be a divisor of rows=4, got 3"),
        (["--steps", "1", "--length", "5000"], "--length"),
        (["--steps", "1", "--device", "nowhere"], "device must be a device of this machine"),
        (["--steps", "1", "--resume"], "holds no checkpoint.pt"),
        (["--steps", "1", "--corpus", "nowhere"], "nowhere"),
    ],
)
def test_wrong_arguments_are_refused(corpus: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    result = run(corpus, tmp_path / "out", *arguments)
    assert result.exit_code != 0
    assert words in result.output
    assert not (tmp_path / "out" / "checkpoint.pt").exists()


def test_a_run_is_not_overwritten_nor_resumed_as_another(corpus: Path, target: Path) -> None:
    assert "holds a run; --resume goes on with it" in run(corpus, target, "--steps", "40").output
    result = run(corpus, target, "--steps", "40", "--resume", "--learning-rate", "0.5")
    assert "learning_rate must be" in result.output
