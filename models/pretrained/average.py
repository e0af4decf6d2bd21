"""Averages the weights of two models of one shape: a model, and the same model after further training.

Models trained from one start can be averaged (arXiv 2203.05482, 2109.01903). The mean of a run with the unlikelihood
loss and the run before it repeats less, at the loss of the latter. Knows no data.

    python -m lade.models.pretrained.average runs/target/model runs/unlooped/model --share 0.33 --out runs/mean
"""

from pathlib import Path

import click
import torch

from lade.models.load import load
from lade.models.pretrained.checkpoint import export
from lade.models.pretrained.tokenizer import load_tokenizer

FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command()
@click.argument("one", type=FOLDER)
@click.argument("other", type=FOLDER)
@click.option("--share", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Of OTHER's weights.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder to write.")
def main(one: Path, other: Path, share: float, out: Path) -> None:
    """Write the weighted mean of ONE's and OTHER's weights, with ONE's tokenizer."""
    try:
        first, second = (load(folder, dtype="float32")[0] for folder in (one, other))
        tokenizer = load_tokenizer(one)
        shapes = [{name: weight.shape for name, weight in model.state_dict().items()} for model in (first, second)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"{other}: its weights have other names or shapes than those of {one}")
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    with torch.no_grad():
        for weight, away in zip(first.parameters(), second.parameters(), strict=True):
            weight.lerp_(away, share)
    export(out, first, tokenizer)


if __name__ == "__main__":
    main()
