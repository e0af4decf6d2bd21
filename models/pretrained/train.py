"""Trains a target on a corpus, or with --teacher distils a draft from it; runs can be interrupted and resumed.

python -m lade.models.pretrained.train --corpus runs/corpus --out runs/target --minutes 12
python -m lade.models.pretrained.train --corpus runs/corpus --out runs/draft --size draft --teacher runs/target/model
"""

import signal
from pathlib import Path
from typing import Any

import click
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from lade.models.device import as_device
from lade.models.load import load
from lade.models.pretrained.batches import Mixture, read_streams
from lade.models.pretrained.checkpoint import FILE
from lade.models.pretrained.documents import KINDS, SIDES
from lade.models.pretrained.objectives import Distillation, Unlooping, next_token
from lade.models.pretrained.plan import REPEATS, Budget, Plan
from lade.models.pretrained.prune import cut_from
from lade.models.pretrained.sizes import SIZES, fresh_model
from lade.models.pretrained.tokenizer import load_tokenizer
from lade.models.pretrained.trainer import Trainer

FOLDER = click.Path(path_type=Path, file_okay=False)
MODEL = click.Path(path_type=Path, file_okay=False, exists=True)
KIND_TIMES = (click.Choice(KINDS), click.FloatRange(min=0))
SAMPLE, LONGEST_SAMPLE = 16, 256  # rows and tokens per row of the sample for pruning
REPEAT_HELP = ", ".join(f"{kind} {times:g}" for kind, times in REPEATS.items())


@click.command()
@click.option("--corpus", type=FOLDER, required=True, help="Folder that the corpus command wrote.")
@click.option("--out", type=FOLDER, required=True, help="Folder for checkpoint, log and weights.")
@click.option("--size", type=click.Choice(list(SIZES)), default="target", show_default=True)
@click.option("--init", type=MODEL, help="Go on from this model's weights instead of random ones.")
@click.option("--teacher", type=MODEL, help="Distil from this model.")
@click.option("--share", type=click.FloatRange(0, 1), default=0.8, show_default=True, help="Of KL in distillation.")
@click.option("--unloop", type=click.FloatRange(min=0), default=0.0, show_default=True, help="Weight against loops.")
@click.option("--steps", type=click.IntRange(min=1), help="End after so many steps ...")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="... or after so much time.")
@click.option("--repeat", type=KIND_TIMES, multiple=True, help=f"How often a kind counts.  [default: {REPEAT_HELP}]")
@click.option("--rows", type=click.IntRange(min=1), default=128, show_default=True, help="In a step.")
@click.option("--length", type=click.IntRange(2, 2048), default=1024, show_default=True, help="Tokens in a row.")
@click.option("--micro-rows", type=click.IntRange(min=1), default=8, show_default=True, help="At a time on the device.")
@click.option("--learning-rate", type=click.FloatRange(min=0, min_open=True), default=3e-3, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--device", help="[default: cuda where there is one, else cpu]")
@click.option("--compile/--no-compile", default=None, help="[default: on cuda only]")
@click.option("--resume", is_flag=True, help="Go on with the run in --out.")
def main(corpus: Path, out: Path, device: str | None, resume: bool, **settings: Any) -> None:
    """Train a small model on a corpus."""
    try:
        place = as_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        plan = plan_of(place, **settings)
        check_folder(out, resume)
        tokenizer = load_tokenizer(corpus)
        trainer = trainer_of(plan, corpus, out, tokenizer, place)
        if resume:
            trainer.resume()
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    trainer.run(tokenizer)


def plan_of(place: torch.device, repeat: tuple[tuple[str, float], ...], **settings: Any) -> Plan:
    budget = Budget(settings.pop("steps"), settings.pop("minutes"))
    if settings["compile"] is None:
        settings["compile"] = place.type == "cuda"
    return Plan(budget, repeats=REPEATS | dict(repeat), **settings)


def check_folder(out: Path, resume: bool) -> None:
    """Make the folder; FileExistsError or FileNotFoundError where `resume` does not fit what it holds."""
    if resume and not (out / FILE).is_file():
        raise FileNotFoundError(f"--resume: {out} holds no {FILE}")
    if not resume and (out / FILE).exists():
        raise FileExistsError(f"--out: {out} holds a run; --resume goes on with it")
    out.mkdir(parents=True, exist_ok=True)


def trainer_of(plan: Plan, corpus: Path, out: Path, tokenizer: PreTrainedTokenizerFast, place: torch.device) -> Trainer:
    """The initial model, its objective and its rows; a draft is pruned from its teacher."""
    train, held_out = (Mixture(read_streams(corpus, side), plan.repeats, plan.seed) for side in SIDES)
    model = model_of(plan.init, len(tokenizer)) if plan.init else fresh_model(plan.size, len(tokenizer), plan.seed)
    if plan.teacher is None:
        objective = Unlooping(plan.unloop) if plan.unloop else next_token
        return Trainer(model.to(place), objective, train, held_out, plan, out)
    teacher = model_of(plan.teacher, len(tokenizer)).requires_grad_(False)
    if plan.init is None:
        cut_from(model, teacher, train.rows(0, SAMPLE, min(plan.length, LONGEST_SAMPLE)))
    return Trainer(model.to(place), Distillation(teacher.to(place), plan.share), train, held_out, plan, out)


def model_of(folder: Path, vocabulary: int) -> LlamaForCausalLM:
    """A saved model in float32; ValueError where its vocabulary is not the corpus's."""
    model: LlamaForCausalLM = load(folder, dtype="float32")[0]
    if model.config.vocab_size != vocabulary:
        raise ValueError(
            f"{folder}: the model must have the corpus's {vocabulary} tokens, got {model.config.vocab_size}"
        )
    return model


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a terminated run saves its state
    main()
