"""Contrastive decoding one token at a time, written down from the paper's rule: what drafts must not change.

No cache, no batch, no padding inside the models, no transformers' `generate`: every token is chosen from two forwards
over the whole text so far. Knows nothing of lade.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

PAD = 0
TIE = 1e-4


@dataclass(frozen=True)
class Rule:
    """Parameters of the method, and how tokens are chosen: `temperature` 0 takes the best."""

    weight: float = 1.0
    amateur_temperature: float = 1.0
    alpha: float = 0.1
    temperature: float = 0.0
    top_k: int = 0


@dataclass
class Reference:
    """Per row the new tokens, the scores they were chosen by, and how far the nearest other outcome was."""

    texts: list[list[int]]
    scores: list[list[Tensor]]
    gaps: list[list[float]] = field(default_factory=list)


@torch.inference_mode()
def contrastive(
    expert: PreTrainedModel,
    amateur: PreTrainedModel,
    prompts: list[Tensor],
    tokens: int,
    rule: Rule,
    ends: tuple[int, ...] = (),
) -> Reference:
    """Decode prompts (1-D, without padding) side by side; samples come from the global generator, row after row."""
    found = Reference([[] for _ in prompts], [[] for _ in prompts], [[] for _ in prompts])
    for _ in range(tokens):
        going = [not text or text[-1] not in ends for text in found.texts]
        if not any(going):
            break
        rows = []
        for row, (prompt, goes) in enumerate(zip(prompts, going, strict=True)):
            scores, gap = one_step(expert, amateur, [*prompt.tolist(), *found.texts[row]], rule)
            rows.append(scores.float())
            if goes:
                found.scores[row].append(scores)
                found.gaps[row].append(gap)
        for row, token in enumerate(chosen(torch.stack(rows), rule)):
            if going[row]:
                found.texts[row].append(token)
    return found


def one_step(expert: PreTrainedModel, amateur: PreTrainedModel, text: list[int], rule: Rule) -> tuple[Tensor, float]:
    """[V] scores, and the distance of what decides: the two best scores, or a token from the bound of plausibility."""
    ids = torch.tensor([text])
    p = expert(input_ids=ids, use_cache=False).logits[0, -1].log_softmax(-1)
    q = (amateur(input_ids=ids, use_cache=False).logits[0, -1] / rule.amateur_temperature).log_softmax(-1)
    bound = p.max() + math.log(rule.alpha) if rule.alpha else torch.tensor(-math.inf)
    scores = p - rule.weight * q
    scores[p < bound] = -math.inf
    best = scores.topk(2).values
    return scores, min(float(best[0] - best[1]), float((p - bound).abs().min()))


def chosen(scores: Tensor, rule: Rule) -> list[int]:
    """[B, V] scores to B tokens."""
    if not rule.temperature:
        return scores.argmax(-1).tolist()
    scores = scores / rule.temperature
    if rule.top_k:
        scores[scores < scores.topk(rule.top_k).values[:, -1:]] = -math.inf
    return torch.multinomial(scores.softmax(-1), 1)[:, 0].tolist()


def assert_texts(ours: Tensor, width: int, reference: Reference, exact: bool) -> None:
    """Rows of new tokens equal the reference's, padded; in float32 they may part at a tie."""
    for row, text in enumerate(reference.texts):
        new = ours[row, width:].tolist()
        padded = text + [PAD] * (len(new) - len(text))
        assert len(new) == max(map(len, reference.texts)) or not exact
        if new == padded:
            continue
        index = next(i for i, (one, other) in enumerate(zip(new, padded, strict=False)) if one != other)
        assert not exact, f"row {row} parts at new token {index}\nreference {text}\nours      {new}"
        gap = reference.gaps[row][index]
        assert gap < TIE, f"row {row} parts at new token {index}, {gap:.1e} from a tie"
