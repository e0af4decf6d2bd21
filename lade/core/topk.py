"""Top-k tokens and their probabilities from rows of logits. R rows, V vocabulary, k tokens."""

from __future__ import annotations

import torch

BLOCK = 64  # neighbouring logits whose maximum is compared in the first pass
ONE_PASS = 1 << 14  # logits up to which one pass is faster


def likeliest(
    logits: torch.Tensor, k: int, inverse_temperature: float | torch.Tensor = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `k` largest logits of each row; ties in any order.

    Args:
        logits: [R, V].
        inverse_temperature: multiplies the logits before the softmax; a number, or [R, 1].

    Returns:
        [R, k] tokens, likeliest first, and [R, k] probabilities. On a CPU those of a long row are upper bounds: blocks
        without a chosen token add only their largest logit to the sum, which counts where mass is spread over hundreds
        of tokens.
    """
    rows, size = logits.shape
    logits = logits.float()
    whole = size // BLOCK * BLOCK
    if logits.device.type != "cpu" or whole < 2 * k * BLOCK or rows * size <= ONE_PASS:
        return exactly_likeliest(inverse_temperature * logits, k)
    # A fifth of topk's time on a CPU: the k largest logits lie in the k blocks with the largest maxima.
    maxima = logits[:, :whole].view(rows, -1, BLOCK).amax(-1)  # [R, V / BLOCK]
    chosen = maxima.topk(k).indices  # [R, k]
    indices = (BLOCK * chosen[:, :, None] + torch.arange(BLOCK)).flatten(1)  # [R, k BLOCK]
    if whole < size:
        indices = torch.cat([indices, torch.arange(whole, size).expand(rows, -1)], dim=1)
    candidates = logits.gather(1, indices)
    best = candidates.topk(k).indices
    maxima.scatter_(1, chosen, -torch.inf)
    probabilities = torch.cat([candidates, maxima], dim=1).mul_(inverse_temperature).softmax(-1)
    return indices.gather(1, best), probabilities.gather(1, best)


def exactly_likeliest(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[R, k] tokens, likeliest first, and their exact [R, k] probabilities, of [R, V] logits."""
    tokens = logits.topk(k).indices
    return tokens, logits.softmax(-1).gather(1, tokens)
