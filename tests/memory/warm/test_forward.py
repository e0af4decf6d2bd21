"""Forwards of texts side by side: which of them attend by two batched products, and that they compute the same."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from families import BY_NAME
from tiny import tiny_model
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import AttentionInterface

from lade.memory.warm.forward import forward
from lade.memory.warm.reader import Reader
from lade.target.sidebyside import SideBySide

TEXTS = torch.arange(5, 29).view(3, 8)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert AttentionInterface._global_mapping["sdpa"] is sdpa_attention_forward


@pytest.fixture
def attended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Queries per text of each layer that attended side by side."""
    attend, found = SideBySide.attend, list[int]()

    def told(self: SideBySide, query: torch.Tensor, *states: Any, **others: Any) -> Any:
        found.append(query.shape[2])
        return attend(self, query, *states, **others)

    monkeypatch.setattr(SideBySide, "attend", told)
    return found


@torch.no_grad()
def read(model: PreTrainedModel, first: int) -> torch.Tensor:
    """Logits after the texts, whose tokens from the first one on are read one by one."""
    reader = Reader(model, *TEXTS.shape)
    logits = reader.read(TEXTS[:, :first])
    for place in range(first, TEXTS.shape[1]):
        logits = reader.read(TEXTS[:, place : place + 1])
    assert logits is not None
    return logits


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral-sliding", "qwen2", "deepseek_v3", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_token_of_each_text(name: str, dtype: torch.dtype, attended: list[int]) -> None:
    model = tiny_model(BY_NAME[name], "sdpa", dtype)
    found = read(model, 3)
    assert attended == [1] * 5 * model.config.num_hidden_layers
    whole = read(model, 8)
    assert len(attended) == 5 * model.config.num_hidden_layers
    scale = whole.float().std()
    assert ((found - whole).float().abs().max() / scale) < 0.1


@torch.no_grad()
def test_products_take_whole_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a buffer would be copied for each."""
    products = list[tuple[int, int]]()

    def noted(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        products.append((one.shape[2], other.shape[2]))
        return torch.matmul(one, other)

    model, room = tiny_model(BY_NAME["llama"], "sdpa", torch.bfloat16), 8  # tokens that are less than a block
    reader = Reader(model, len(TEXTS), room)
    reader.read(TEXTS[:, :5])
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "__matmul__", noted)
        reader.read(TEXTS[:, 5:6])
    group = model.config.num_attention_heads // model.config.num_key_value_heads
    assert products.count((group, room)) == model.config.num_hidden_layers


@pytest.mark.parametrize(("attention", "dtype"), [("sdpa", torch.float32), ("eager", torch.bfloat16)])
def test_others_attend_as_ever(attention: str, dtype: torch.dtype, attended: list[int]) -> None:
    """float32, which torch's attention is faster in, and other implementations."""
    read(tiny_model(BY_NAME["llama"], attention, dtype), 3)
    assert not attended


@torch.no_grad()
def test_a_users_own_attention_is_called(attended: list[int]) -> None:
    calls, model = [], tiny_model(BY_NAME["llama"], "sdpa", torch.bfloat16)

    def own(*given: Any, **others: Any) -> Any:
        calls.append(1)
        return sdpa_attention_forward(*given, **others)

    AttentionInterface.register("sdpa", own)
    try:
        forward(model, TEXTS[:, :1], 0, None)
    finally:
        AttentionInterface.register("sdpa", sdpa_attention_forward)
    assert calls
    assert not attended
