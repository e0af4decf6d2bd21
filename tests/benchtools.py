"""What tests of the bench share: the model that ships, prompts for it, contenders that are made by hand."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from lade.applications.bench.contenders import Contender, contenders
from lade.applications.bench.methods import PLAIN, BenchMethod, MethodOptions, plain
from lade.applications.bench.prompts import Prompt

PROMPTS = (
    Prompt(0, ("Once upon a time, there was",)),
    Prompt(1, ("One day, a little cat found",)),
    Prompt("two", ("Tom had a big red", "What did Tom do?"), category="long"),
)


def made(decode: Callable[..., Tensor], label: str = "made", **method: Any) -> Contender:
    """A contender that decodes in its own way."""
    return Contender(label, decode, BenchMethod(label, lambda options: decode, **method))


def with_plain(*others: Contender) -> list[Contender]:
    return [made(plain(MethodOptions()), PLAIN, baseline=True), *others]


def asked(specs: str, **options: Any) -> list[Contender]:
    return contenders(specs, MethodOptions(**options))


def noted(calls: list[tuple[str, dict[str, Any]]], labels: Sequence[str]) -> list[Contender]:
    """Contenders that decode plainly and note how they were called; the first is plain decoding's stand-in."""

    def decoder(label: str) -> Callable[..., Tensor]:
        def decode(model: PreTrainedModel, **arguments: Any) -> Tensor:
            calls.append((label, arguments))
            arguments.pop("reference", None)
            return model.generate(**arguments)

        return decode

    return [made(decoder(label), label) for label in labels]
