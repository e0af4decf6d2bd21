"""Measures of a text's diversity: n-gram entropy, distinct n-grams, repetition; per text, and averaged over texts.

A text is any sequence of hashable units: token ids, with entropies in nats, or words, with entropies in bits. Pure
Python; likelihoods are in `lade.measure.likelihood`.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lade.base.shown import invalid

Units = Sequence[Hashable]
Value = float | None  # None: the text is too short for the measure


def ngrams(text: Units, n: int) -> Counter[tuple[Hashable, ...]]:
    """Counts of the text's n-grams; they sum to len(text) - n + 1.

    Raises:
        ValueError: n is below 1.
    """
    if n < 1:
        raise invalid("n", "an integer of at least 1", n)
    return Counter(tuple(text[start : start + n]) for start in range(len(text) - n + 1))


def ngram_entropy(text: Units, n: int, base: float = math.e) -> Value:
    """Shannon entropy of drawing one n-gram of the text: -sum f/F log(f/F), F = sum f; in nats, or in bits for base 2.

    From 0 (one n-gram only) to log(len(text) - n + 1) (no two alike). "Ent-n" of Zhang et al., arXiv 1809.05972. `None`
    for a text without n-grams.
    """
    counts = ngrams(text, n).values()
    total = sum(counts)
    if not total:
        return None
    return math.fsum(count / total * math.log(total / count) for count in counts) / math.log(base)


def distinct(text: Units, n: int) -> Value:
    """Distinct n-grams over all n-grams, above 0 and at most 1.

    "distinct-n" of Li et al., arXiv 1510.03055, who divide by the number of tokens: equal at n = 1, and less
    by the factor (len(text) - n + 1) / len(text) for n > 1. `None` for a text without n-grams.
    """
    counts = ngrams(text, n)
    return len(counts) / counts.total() if counts else None


def repetition(text: Units, n: int) -> Value:
    """Share of repeated n-grams, at least 0 and below 1: 1 - distinct.

    "seq-rep-n" of Welleck et al., arXiv 1908.04319. `None` for a text without n-grams.
    """
    share = distinct(text, n)
    return None if share is None else 1 - share


def diversity(text: Units) -> Value:
    """Product of `distinct` at n = 2, 3 and 4, above 0 and at most 1 (Su et al., arXiv 2202.06417); `None` below 4."""
    shares = [distinct(text, n) for n in (2, 3, 4)]
    return math.prod(share for share in shares if share is not None) if None not in shares else None


Measure = Callable[[Units], Value]
ENTROPIES: dict[str, Callable[..., Value]] = {f"entropy-{n}": partial(ngram_entropy, n=n) for n in (1, 2, 3)}
SHARES: dict[str, Measure] = {
    **{f"distinct-{n}": partial(distinct, n=n) for n in (1, 2, 3)},
    "repetition-4": partial(repetition, n=4),
    "diversity": diversity,
}
MEASURES = (*ENTROPIES, *SHARES)  # the names of all


def measures_of(text: Units, base: float = math.e) -> dict[str, Value]:
    """All measures of one text; `base`: the logarithm's of the entropies, e for nats and 2 for bits."""
    entropies = {name: measure(text, base=base) for name, measure in ENTROPIES.items()}
    return entropies | {name: measure(text) for name, measure in SHARES.items()}


@dataclass(frozen=True)
class TextUnit:
    """What the measures of a text count. Words are separated by white space."""

    entropy: str
    base: float
    split: Callable[[Sequence[int], Callable[[Sequence[int]], str]], Units]  # token ids and their decoder: the text


UNITS = {
    "tokens": TextUnit("nats over tokens", math.e, lambda tokens, decode: tokens),
    "words": TextUnit("bits over words", 2, lambda tokens, decode: decode(tokens).split()),
}


def averaged(texts: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    """The mean of each measure over the texts that have it, all with the same weight; `None` if no text has it."""
    values: dict[str, list[float]] = {}
    for measures in texts:
        for name, value in measures.items():
            values.setdefault(name, []).extend([] if value is None else [value])
    return {name: math.fsum(found) / len(found) if found else None for name, found in values.items()}
