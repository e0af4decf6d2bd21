"""Whether torch has fast products of a dtype: what it says is believed on x86 alone, and silence is no answer."""

from types import SimpleNamespace

import pytest
import torch

from lade.facts.products import slow_on_cpu, told  # not what the tests' machine says

HALVES = (torch.bfloat16, torch.float16)


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A torch that says what it has been given."""
    answers = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: True, _is_mkldnn_fp16_supported=lambda: False)
    monkeypatch.setattr(torch.ops, "mkldnn", answers)
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: True)
    monkeypatch.setattr("lade.facts.products.told", told)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return answers


def test_each_half_is_asked_for_itself(says: SimpleNamespace) -> None:
    assert [slow_on_cpu(dtype) for dtype in HALVES] == [False, True]
    says._is_mkldnn_bf16_supported, says._is_mkldnn_fp16_supported = lambda: False, lambda: True
    assert [slow_on_cpu(dtype) for dtype in HALVES] == [True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8])
def test_other_dtypes_are_never_slow(dtype: torch.dtype, says: SimpleNamespace) -> None:
    assert told(dtype) is None
    assert not slow_on_cpu(dtype)


def test_a_torch_that_does_not_say_is_not_slow(says: SimpleNamespace) -> None:
    del says._is_mkldnn_fp16_supported
    assert told(torch.float16) is None
    assert not slow_on_cpu(torch.float16)


def test_a_build_without_onednn_is_not_slow(says: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    assert not slow_on_cpu(torch.float16)


@pytest.mark.parametrize(("machine", "slow"), [("AMD64", True), ("aarch64", False), ("arm64", False), ("", False)])
def test_other_architectures_are_not_known(
    machine: str, slow: bool, says: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert slow_on_cpu(torch.float16) is slow


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.compat
def test_this_torch_can_be_asked(dtype: torch.dtype) -> None:
    assert told(dtype) in (True, False, None)
