"""A warm table that knows nothing of the model costs next to nothing: predictions that do not come true lose weight."""

from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import lade
from lade.memory.context import CONTEXT
from lade.memory.warm import warming as warm
from lade.memory.warmtable import WarmContexts, WarmTable
from lade.models import load

Subject = tuple[PreTrainedModel, PreTrainedTokenizerBase, Sequence[str]]
COST = 0.02  # of tokens per step, at most
PROMPTS = {
    "lade-code-8M": (
        'def largest(numbers: list[int]) -> int:\n    """The largest of some numbers, 0 if there are none."""\n',
        "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
        'import json\n\ndef read_json(path: str) -> dict:\n    """Read a JSON file and return its content."""\n',
    ),
    "stories260K": (
        "Once upon a time there was a little girl named Lily who had a red ball. One day",
        "Tom and his dog went to the park to play. They saw a big tree and",
        "The cat was very hungry. She looked for food in the kitchen, but",
    ),
}


def uniform(vocabulary: int, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(vocabulary, (rows, 16), generator=generator, dtype=torch.int32)
    found = torch.rand(rows, 16, generator=generator)
    return tokens, (found / found.sum(1, keepdim=True)).sort(descending=True).values


def certain(vocabulary: int, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(vocabulary, (rows, 16), generator=generator, dtype=torch.int32)
    return tokens, torch.tensor([0.9] + [0.1 / 15] * 15).expand(rows, 16).contiguous()


def noise(vocabulary: int, make: Callable[[int, int, torch.Generator], tuple[torch.Tensor, torch.Tensor]]) -> WarmTable:
    """Random tokens after every entry and after random contexts."""
    generator = torch.Generator().manual_seed(0)
    endings = torch.randint(vocabulary, (4096, CONTEXT), generator=generator, dtype=torch.int32).unique(dim=0)
    contexts = WarmContexts(endings, *make(vocabulary, len(endings), generator))
    return WarmTable(*make(vocabulary, vocabulary, generator), contexts, 1.0)


def tokens_per_step(subject: Subject, table: WarmTable | None, budget: int, monkeypatch: pytest.MonkeyPatch) -> float:
    model, tokenizer, prompts = subject
    monkeypatch.setattr(warm, "cached", lambda *_, **__: table)
    tokens = steps = 0
    for prompt in prompts:
        config = lade.LookaheadConfig(budget=budget, adapt=False)
        inputs = tokenizer(prompt, return_tensors="pt")
        lade.generate(model, **inputs, config=config, do_sample=False, max_new_tokens=48)
        stats = lade.last_stats()
        assert stats is not None
        assert (stats.warm_table is None) == (table is None)
        tokens, steps = tokens + stats.new_tokens, steps + stats.steps
    return tokens / steps


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("name", "budget"), [("lade-code-8M", 16), ("stories260K", 64)])
def test_a_table_of_noise_costs_next_to_nothing(name: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = *load(name, dtype="float32"), PROMPTS[name]
    vocabulary = subject[0].config.vocab_size
    cold = tokens_per_step(subject, None, budget, monkeypatch)
    for make in (uniform, certain):
        assert tokens_per_step(subject, noise(vocabulary, make), budget, monkeypatch) >= (1 - COST) * cold
