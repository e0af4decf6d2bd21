"""Flash attention: models loaded with it, the setting that asks for it, and what runs where it is not installed.

The packages are stand-ins that compute on the CPU; PyTorch's kernels for CUDA run on tensors without values.
"""

import copy
import logging
from collections.abc import Iterator
from typing import Any

import flashes
import pytest
import torch
from families import BY_NAME
from tiny import tiny_model, words
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import PreTrainedModel, masking_utils
from transformers.integrations import flex_attention as theirs

import lade
from lade.target import available, flashattn
from lade.target.partial import EfficientKernels, FlashKernels, HostKernels
from lade.target.verdicts import packs

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 20}
SIZES: dict[str, Any] = {"mode": "lookahead", "ngram": 4, "window": 4, "guesses": 4}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    flashattn.installed.cache_clear()
    available._noticed.clear()


def loaded(family: str, implementation: str) -> PreTrainedModel:
    """As `from_pretrained` with this implementation, which transformers refuses on CPUs."""
    model = copy.deepcopy(tiny_model(BY_NAME[family], "sdpa"))
    model.config._attn_implementation = implementation
    return model


OWN = {"masked", "split"}
RULES = ("kernel", "together", "masked", "defined")  # soft caps and sinks are for the first and the last


def assert_plain(model: PreTrainedModel, ways: set[str], flash: bool = False, lengths: tuple[int, ...] = (14,)) -> None:
    """The text is that of plain decoding, its trees computed in these ways."""
    given = {"input_ids": words(*lengths)["input_ids"]} if len(lengths) == 1 else words(*lengths)
    expected = model.generate(**given, **GREEDY)
    config = lade.LookaheadConfig(**SIZES, flash=flash)
    assert torch.equal(lade.generate(model, **given, **GREEDY, config=config), expected)
    stats = lade.last_stats()
    assert stats is not None
    assert stats.fallback is None
    assert stats.attention.keys() - {"single"} <= ways
    assert max(stats.widths) > 1


@pytest.mark.parametrize(("family", "version"), [("llama", 2), ("mistral-sliding", 3), ("gemma3", 4)])
def test_models_loaded_with_flash_attention(family: str, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = flashes.install(monkeypatch, version)
    model = loaded(family, f"flash_attention_{version}")
    assert_plain(model, {f"flash-attn {version}"})
    ours = [call for call in calls if not call.causal]
    shared = model.config.get_text_config().num_key_value_heads
    assert {call.query.shape[2] for call in ours} <= {1, shared}  # groups are folded; 1 is the trial at first
    assert version == 2 or {call.num_splits for call in ours} == {0}
    assert packs(model, rows=100)  # padded forwards need a mask, which the kernels have not


def test_without_the_package_a_model_loaded_with_it_takes_pytorch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a kernel of the hub stands in for the package, or another version is installed."""
    flashes.install(monkeypatch, 2)
    monkeypatch.setattr(flashattn, "DEVICES", ())
    assert_plain(loaded("llama", "flash_attention_2"), OWN)


def test_another_implementation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    flashes.install(monkeypatch, 2)
    model = loaded("llama", "flash_attention_2")
    model.config._attn_implementation = "paged|sdpa"
    ids = words(6)["input_ids"]
    with pytest.warns(lade.FallbackWarning, match=r"'paged\|sdpa' \(drafts need one of eager, sdpa, flash_attention_2"):
        _fall_back(model, ids)


def _fall_back(model: PreTrainedModel, ids: torch.Tensor) -> None:
    lade.augment_all()
    try:
        model.generate(ids, max_new_tokens=2)
    finally:
        lade.restore_all()


# The setting


@pytest.mark.parametrize("lengths", [(14,), (9, 4)])
def test_the_setting_takes_the_package(lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    flashes.install(monkeypatch, 2, 3)
    assert_plain(tiny_model(BY_NAME["llama"], "sdpa"), {"flash-attn 3"}, flash=True, lengths=lengths)


def test_one_sentence_says_that_the_package_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model(BY_NAME["llama"], "sdpa")
    with caplog.at_level(logging.WARNING, "lade"):
        for _ in range(2):
            assert_plain(model, OWN, flash=True)
    assert caplog.messages == ["lade: flash-attn needs a CUDA device. USE_FLASH takes PyTorch's own flash attention."]
    caplog.clear()
    ways = available.ways_of("sdpa", torch.device("cuda"), flash=True)
    assert caplog.messages == ["lade: flash-attn is not installed. USE_FLASH takes PyTorch's own flash attention."]
    assert [way.name for way in ways.each] == ["split", "flash", "efficient", *RULES]
    assert not ways.timed


def test_what_is_installed_is_timed_beside_the_other_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    flashes.install(monkeypatch, 4)
    ways = available.ways_of("sdpa", torch.device("cpu"))
    names = [way.name for way in ways.each]
    assert names == [*RULES, "flash-attn 4", "split", "flash", "efficient", "loop"]
    assert ways.timed


def test_a_package_that_does_not_run_here_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Built for another torch, or for another device."""
    flashes.install(monkeypatch, 2, 3)

    def broken(*args: object, return_attn_probs: bool = False, **kwargs: object) -> None:
        raise RuntimeError("no kernel image is available for execution on the device")

    monkeypatch.setattr("flash_attn_interface.flash_attn_func", broken)
    found = flashattn.installed("cpu")
    assert found is not None
    assert found.name == "flash-attn 2"
    monkeypatch.setattr("flash_attn.flash_attn_func", broken)
    flashattn.installed.cache_clear()
    assert flashattn.installed("cpu") is None


# FlexAttention


@pytest.mark.real
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_models_loaded_with_flex_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain decoding computes with FlexAttention, uncompiled; lade's trees with the ways of SDPA."""
    calls = []

    def uncompiled(*args: Any, training: bool = False, **kwargs: Any) -> Any:
        calls.append(1)
        return flex_attention(*args, **kwargs)

    def uncompiled_mask(*args: Any, _compile: bool = False, **kwargs: Any) -> Any:
        return create_block_mask(*args, **kwargs)

    monkeypatch.setattr(theirs, "compile_friendly_flex_attention", uncompiled)
    monkeypatch.setattr(masking_utils, "create_block_mask", uncompiled_mask)
    assert_plain(loaded("mistral-sliding", "flex_attention"), {"masked", "loop"})
    assert calls


# PyTorch's kernels for CUDA, on tensors without values


def empty(tokens: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(1, 2, tokens, size, dtype=dtype, device="cuda")


@pytest.mark.parametrize("kernels", [FlashKernels(), EfficientKernels()], ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("masked", [True, False])
def test_kernels_of_pytorch_for_cuda(kernels: EfficientKernels, masked: bool) -> None:
    for dtype in kernels.types:
        for size in (64, 80, 96, 128, 256):
            for queries in (1, 31, 33, 128):
                with FakeTensorMode():
                    query = empty(queries, size, dtype)
                    key = empty(3 * 37, size, dtype).narrow(2, 37, 37)
                    assert kernels.takes(query, key)
                    mask = empty(queries, 37, dtype).narrow(1, 0, 1) if masked else None
                    output, sums = kernels.partial(query, key, key, mask, 0.3)
                assert (output.shape, output.dtype) == ((1, 2, queries, size), dtype)
                assert (sums.shape, sums.dtype) == ((1, 2, queries), torch.float32)


def test_what_they_do_not_take() -> None:
    with FakeTensorMode():
        even, odd, large = (empty(8, size, torch.float16) for size in (64, 60, 264))
        assert FlashKernels().takes(even, even)
        assert not any(
            FlashKernels().takes(*each) for each in ((odd, odd), (large, large), (even, even.narrow(3, 0, 32)))
        )
        assert not FlashKernels().takes(even.float(), even.float())
        assert EfficientKernels().takes(even.float(), even.float())
        assert not HostKernels().takes(even, even)
