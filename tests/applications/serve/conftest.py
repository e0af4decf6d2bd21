"""What tests of the server share: the model, and one server on it without keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import lade

if TYPE_CHECKING:
    from pathlib import Path

    from served import Served
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@pytest.fixture(scope="session")
def pair() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model in float32 and its tokenizer. Nobody changes them."""
    from served import NAME

    return lade.models.load(NAME, dtype="float32")


@pytest.fixture(scope="session")
def served(pair: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> Iterator[Served]:
    from served import serving
    from untried import untried

    with ExitStack() as open_:
        with untried():  # the last digits of log probabilities depend on the way
            found = open_.enter_context(serving(pair))
        yield found


@pytest.fixture(scope="session")
def seeing(llava: Path) -> Iterator[Served]:
    """A server on it."""
    from seeing import NAME
    from served import serving
    from untried import untried

    from lade.models.processor import load_processor

    with ExitStack() as open_:
        with untried():
            pair = lade.models.load(llava, dtype="float32")
            found = open_.enter_context(serving(pair, processor=load_processor(llava), model=NAME))
        yield found


@pytest.fixture
def one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are computed in one way, so that equal requests have the same logits to the last bit."""
    from lade.target.fused.stacked import Stack

    monkeypatch.setattr(Stack, "fits", lambda self, rows, share: False)
