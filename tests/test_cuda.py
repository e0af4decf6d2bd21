"""The core's laws on a CUDA device: the same texts there, with the host path and the attention that are used there.

`pytest -n 0 tests/test_cuda.py` runs all of it. `TEST_DEVICE=cpu` tries the file itself on a machine without one.
"""

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from families import BRANCHABLE, BY_NAME, Family
from tiny import tiny_model, words

import lade
from lade.kernels import available
from lade.measure.audit import parting
from lade.target import own

DEVICE = os.environ.get("TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="no CUDA device"),
]
TIE = 1e-4  # of float32 logits, as law 1 allows
PAPER = lade.LookaheadConfig(mode="lookahead", window=5, ngram=4)
AUTO = lade.LookaheadConfig()
CHOSEN = [family for family in BRANCHABLE if family.name in {"llama", "gemma3", "gpt2", "mixtral", "deepseek_v3"}]
CAPPED = [BY_NAME[name] for name in ("gemma2", "gpt_oss")]  # soft caps and sinks
METHODS: dict[str, Callable[[Any], Any]] = {
    "draft": lambda model: lade.DraftModel(model, likeliest=True),
    "candidates": lambda model: lade.MultiCandidate(model, likeliest=True),
    "layers": lambda model: lade.self_speculative(([0], []), likeliest=True),
}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    own.install()
    yield
    own.remove()


def on_device(family: Family, attention: str) -> Any:
    """A copy, as the tiny models are shared."""
    return copy.deepcopy(tiny_model(family, attention)).to(DEVICE)


def prompts(*lengths: int) -> dict[str, torch.Tensor]:
    return {name: tensor.to(DEVICE) for name, tensor in words(*lengths).items()}


def same(model: Any, plain: torch.Tensor, ahead: torch.Tensor, prompt: int) -> None:
    """Texts are equal, or part where rounding explains it, by the audit's rule or by law 1's."""
    for one, other in zip(plain, ahead, strict=True):
        found = parting(model, one, other, prompt)
        assert found is None or found.explained or found.gap < TIE, found


def compare(model: Any, inputs: dict[str, torch.Tensor], sample: bool = False, **ahead: Any) -> None:
    """Decode plainly and with lade, from the same seed."""
    texts = []
    for generate in (model.generate, lambda **kwargs: lade.generate(model, **ahead, **kwargs)):
        torch.manual_seed(0)
        texts.append(generate(**inputs, max_new_tokens=40, do_sample=sample, top_k=20 if sample else None))
    assert lade.last_stats().fallback is None
    if len(inputs["input_ids"]) == 1 and not sample:
        same(model, *texts, inputs["input_ids"].shape[1])
    else:
        assert torch.equal(*texts)


@pytest.mark.parametrize("config", [PAPER, AUTO], ids=["lookahead", "auto"])
@pytest.mark.parametrize("attention", ["eager", "sdpa", "lade"])
@pytest.mark.parametrize("family", CHOSEN, ids=lambda family: family.name)
def test_greedy_texts_are_those_of_plain_decoding(family: Family, attention: str, config: Any) -> None:
    compare(on_device(family, attention), prompts(6), config=config)


@pytest.mark.parametrize("attention", ["eager", "lade"])
@pytest.mark.parametrize("family", CAPPED, ids=lambda family: family.name)
def test_soft_caps_and_sinks(family: Family, attention: str) -> None:
    compare(on_device(family, attention), prompts(6), config=PAPER)


@pytest.mark.parametrize("lengths", [(6,), (5, 9, 3)])
@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("family", CHOSEN, ids=lambda family: family.name)
def test_batches_and_seeds(family: Family, sample: bool, lengths: tuple[int, ...]) -> None:
    compare(on_device(family, "eager"), prompts(*lengths), sample, config=PAPER)


@pytest.mark.parametrize("sample", [False, True])
def test_batches_by_the_kernel(sample: bool) -> None:
    """Rows of unequal trees and lengths in one launch."""
    compare(on_device(BY_NAME["llama"], "sdpa"), prompts(5, 9, 3), sample, config=PAPER)


def test_flash_attention() -> None:
    """PyTorch's own, or that of the package."""
    compare(on_device(BY_NAME["llama"], "sdpa"), prompts(6), config=lade.LookaheadConfig(flash=True))


@pytest.mark.parametrize("method", METHODS)
def test_methods_with_a_model(method: str) -> None:
    model = on_device(BY_NAME["llama"], "sdpa")
    compare(model, prompts(6), method=METHODS[method](model))


@pytest.mark.parametrize("attention", ["sdpa", "lade"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_parts_only_at_near_ties(dtype: str, attention: str) -> None:
    model, _ = lade.models.load("stories260K", dtype=dtype, device=DEVICE, attn_implementation=attention)
    ids = torch.tensor([[1, 400, 300, 200]], device=DEVICE)
    plain = model.generate(ids, max_new_tokens=100, do_sample=False)
    for config in (PAPER, AUTO):
        same(model, plain, lade.generate(model, ids, config=config, max_new_tokens=100, do_sample=False), 4)


@pytest.mark.skipif(DEVICE != "cuda", reason="the kernel is compiled for a CUDA device alone")
def test_the_kernel_is_what_computes() -> None:
    assert available.runs(torch.device(DEVICE))
    model = on_device(BY_NAME["llama"], "lade")
    lade.generate(model, **prompts(6), config=PAPER, max_new_tokens=40, do_sample=False)
    assert "kernel" in lade.last_stats().attention
