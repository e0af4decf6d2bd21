"""The self-probe under test: which models it measures, and whether its verdict goes with the model."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from transformers import PreTrainedModel

from lade.target import probe


@contextmanager
def counted_probes() -> Iterator[list[Any]]:
    """The models that are probed inside."""
    probed: list[Any] = []
    measure: Callable[..., tuple[float, float]] = probe._measure

    def counts(model: Any, *args: Any) -> tuple[float, float]:
        probed.append(model)
        return measure(model, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "_measure", counts)
        yield probed


def assert_goes_with_its_verdict(probed: Callable[[], PreTrainedModel]) -> None:
    """`probed` makes a model, and has it probed; neither model nor verdict outlives its last reference."""
    model = probed()
    gc.collect()  # models of other tests
    before, trace = len(probe._reasons), weakref.ref(model)
    del model
    gc.collect()
    assert trace() is None
    assert len(probe._reasons) == before - 1
