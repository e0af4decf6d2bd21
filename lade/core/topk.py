"""The k likeliest tokens of many rows of logits, and their probabilities. R rows, V vocabulary, k tokens."""

from __future__ import annotations

import torch

BLOCK = 64  # logits whose maximum stands for them in the first round
FEW = 1 << 14  # logits of which there need not be two rounds


def likeliest(logits: torch.Tensor, k: int, sharpness: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """The `k` largest logits of each row; ties in any order.

    Args:
        logits: [R, V].
        sharpness: inverse temperature of the probabilities.

    Returns:
        [R, k] tokens, likeliest first, and [R, k] probabilities. Those of a long row on a CPU may be too large where
        hundreds of tokens share the mass: of a block without a chosen token only the largest logit is summed.
    """
    rows, size = logits.shape
    logits = logits.float()
    whole = size // BLOCK * BLOCK
    if logits.device.type != "cpu" or whole < 2 * k * BLOCK or rows * size <= FEW:
        return exactly_likeliest(sharpness * logits, k)
    # A CPU takes a fifth of topk's time for this: the k largest logits lie in the k blocks of largest maxima.
    maxima = logits[:, :whole].view(rows, -1, BLOCK).amax(-1)  # [R, V / BLOCK]
    chosen = maxima.topk(k).indices  # [R, k]
    places = (BLOCK * chosen[:, :, None] + torch.arange(BLOCK)).flatten(1)  # [R, k BLOCK]
    if whole < size:
        places = torch.cat([places, torch.arange(whole, size).expand(rows, -1)], dim=1)
    candidates = logits.gather(1, places)
    best = candidates.topk(k).indices
    maxima.scatter_(1, chosen, -torch.inf)
    probabilities = torch.cat([candidates, maxima], dim=1).mul_(sharpness).softmax(-1)
    return places.gather(1, best), probabilities.gather(1, best)


def exactly_likeliest(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[R, k] tokens, likeliest first, and [R, k] probabilities of [R, V] logits, with no estimate and no short cut."""
    tokens = logits.topk(k).indices
    return tokens, logits.softmax(-1).gather(1, tokens)
