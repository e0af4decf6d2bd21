"""Figures of trained models: bits per byte, share of repeated n-grams, tokens per forward.

Knows no file. The loss is per byte of text, since tokenizers may differ between models.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import lade

LONGEST_TEXT = 3000  # characters: they fit 2,048 positions in every tokenizer here


def bits_per_byte(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> float:
    """Mean over all bytes of the texts, each cut to `LONGEST_TEXT` characters and opened by the BOS token."""
    bits, count = 0.0, 0
    for text in (text[:LONGEST_TEXT] for text in texts):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"][: model.config.max_position_embeddings - 1]
        row = torch.tensor([[tokenizer.bos_token_id, *ids]], device=model.device)
        with torch.no_grad():
            scores = model(input_ids=row[:, :-1], use_cache=False).logits[0].float()  # [L, V]
        bits += float(F.cross_entropy(scores, row[0, 1:], reduction="sum")) / math.log(2)
        count += len(tokenizer.decode(ids).encode())
    return bits / count


def repeated_share(tokens: Sequence[int], n: int = 4) -> float:
    """Share of the n-grams that occurred before in the same text."""
    grams = [tuple(tokens[at : at + n]) for at in range(len(tokens) - n + 1)]
    return (len(grams) - len(set(grams))) / len(grams) if grams else 0.0


@dataclass
class Outputs:
    """Greedy texts of one model for one set of prompts, and the number of forwards of each decoding method."""

    new_tokens: list[list[int]] = field(default_factory=list)
    assisted_forwards: int = 0
    lookahead_forwards: int = 0

    def figures(self) -> dict[str, float]:
        total = sum(map(len, self.new_tokens))
        grams = sum(max(len(tokens) - 3, 0) for tokens in self.new_tokens)
        repeated = sum(repeated_share(tokens) * max(len(tokens) - 3, 0) for tokens in self.new_tokens)
        found = {"prompts": len(self.new_tokens), "new_tokens": total, "repeated_4_grams": repeated / max(grams, 1)}
        if self.assisted_forwards:
            found["assisted_tokens_per_forward"] = total / self.assisted_forwards
        return found | {"lookahead_tokens_per_forward": total / self.lookahead_forwards}


def greedy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    new_tokens: int,
    draft: PreTrainedModel | None = None,
) -> Outputs:
    """Decode each prompt plainly, with the draft if given, and with lookahead, whose prefill is not counted."""
    outputs = Outputs()
    settings: dict[str, Any] = {"max_new_tokens": new_tokens, "do_sample": False}
    for prompt in prompts:
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        row = torch.tensor([[tokenizer.bos_token_id, *ids]], device=model.device)
        inputs: dict[str, Any] = {"input_ids": row, "attention_mask": torch.ones_like(row)}
        outputs.new_tokens.append(model.generate(**inputs, **settings)[0, row.shape[1] :].tolist())
        if draft is not None:
            with counted_forwards(model) as count:
                model.generate(**inputs, **settings, assistant_model=draft)
            outputs.assisted_forwards += count[0]
        lade.generate(model, **inputs, **settings)
        stats = lade.last_stats()
        outputs.lookahead_forwards += stats.steps if stats else 0
    return outputs


@contextmanager
def counted_forwards(model: PreTrainedModel) -> Iterator[list[int]]:
    """A list whose one entry counts the model's forwards inside the block."""
    count = [0]

    def note(*_: Any) -> None:
        count[0] += 1

    handle = model.register_forward_hook(note)
    try:
        yield count
    finally:
        handle.remove()
