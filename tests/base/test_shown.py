"""Values in errors: one short line each, whatever they are."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BatchEncoding

import lade
from lade.base.shown import first_line, invalid, shown


class Loud:
    def __repr__(self) -> str:
        raise AssertionError("it was written out")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (5, "5"),
        (0.5, "0.5"),
        ("x", "'x'"),
        ((4, 2, 2), "(4, 2, 2)"),
        ({"window": 7}, "{'window': 7}"),
        (torch.nn.Linear(2, 2), "Linear"),
        (torch.zeros(3), "Tensor"),
        (torch.float32, "torch.float32"),
        (BatchEncoding({"input_ids": [1]}), "BatchEncoding"),
        (lade.LookaheadConfig, "the class LookaheadConfig"),
        ([Loud()], "[Loud]"),
        ({"model": Loud()}, "{'model': Loud}"),
        (10**4000, "an integer of 13288 bits"),
        (Path("x"), "PosixPath('x')"),
    ],
)
def test_a_value_is_shown(value: Any, text: str) -> None:
    assert shown(value).replace("WindowsPath", "PosixPath") == text


@pytest.mark.parametrize("value", ["a\nb" * 1000, b"\n" * 1000, list(range(10**5)), [[[[[1]]]]], "x" * 10**6])
def test_what_is_long_is_cut_and_stays_in_one_line(value: Any) -> None:
    assert len(shown(value)) < 100
    assert "\n" not in shown(value)


def test_an_error_names_the_argument_what_is_allowed_and_the_value() -> None:
    assert str(invalid("top", "a number", "x")) == "top must be a number, got 'x'"


def test_first_line_of_an_error() -> None:
    assert first_line(RuntimeError("\none\ntwo")) == "one"
    assert first_line(AssertionError()) == "AssertionError"
