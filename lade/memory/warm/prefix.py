"""What stands before a vocabulary entry when the model is asked what follows it.

Many models use position 0 as an attention sink and predict little there. Which tokens before the entry help most
depends on the model; they are chosen by likelihood on texts that it wrote. Knows no file.
"""

from __future__ import annotations

from typing import Any

import torch

from lade.memory.warm.predictions import AfterPrefix
from lade.memory.warm.texts import WarmTexts
from lade.memory.warm.turns import Turns, special_tokens

PLACES = 256  # of the texts, with different tokens
COMMON = 6  # candidates that are the most frequent tokens of the texts

Prefix = tuple[int, ...]


def candidates(model: Any, turns: Turns, texts: WarmTexts) -> list[Prefix]:
    """Nothing, the tokens that begin and end texts, the most frequent tokens, and the chat template's parts."""
    start, ends = special_tokens(model)
    masses = token_masses(texts, start + 1)
    common = masses.argsort(descending=True, stable=True)[:COMMON].tolist()
    found = [(), (start,), *((token,) for token in [*ends, *common]), turns.head, turns.middle]
    return list(dict.fromkeys(found))


def token_masses(texts: WarmTexts, size: int) -> torch.Tensor:
    """[V] how often the texts are expected to go on with each token; V is at least `size`."""
    counted = texts.counted
    return torch.bincount(texts.tokens[counted].flatten(), texts.probabilities[counted].flatten().double(), size)


@torch.no_grad()
def likeliest_prefix(model: Any, found: list[Prefix], texts: WarmTexts, rows: int) -> Prefix:
    """The candidate with the least cross-entropy; the first of equal ones.

    Args:
        rows: places that one forward gets, at most.
    """
    places = _places(texts)
    losses = [_cross_entropy(model, prefix, texts, places, rows) for prefix in found]
    return found[int(torch.tensor(losses).nan_to_num(torch.inf).argmin())]


def _places(texts: WarmTexts) -> torch.Tensor:
    """Indices of up to PLACES places with different tokens, spread evenly over all tokens of the texts.

    Entries serve tokens that are rare in the texts, so every token counts once.
    """
    counted = texts.counted.flatten().nonzero()[:, 0]
    tokens, first = texts.written.flatten()[counted].sort(stable=True)
    begins = torch.ones(len(tokens), dtype=torch.bool)
    begins[1:] = tokens.diff() != 0
    places = counted[first[begins]]
    return places[torch.linspace(0, len(places) - 1, min(PLACES, len(places))).long()]


def _cross_entropy(model: Any, prefix: Prefix, texts: WarmTexts, places: torch.Tensor, rows: int) -> float:
    """Of the predictions in the texts against those after the prefix and the last token alone, in nats."""
    after, loss = AfterPrefix(model, prefix, min(rows, len(places))), 0.0
    for part in torch.split(places, rows):
        tokens, said, likely = (
            tensor.flatten(0, 1)[part].to(model.device) for tensor in (texts.written, texts.tokens, texts.probabilities)
        )
        logits = after.logits(tokens.long())
        logs = logits.gather(1, said.long()).float() - logits.float().logsumexp(1, keepdim=True)
        loss -= float((logs * likely).sum() / max(len(places), 1))
    return loss
