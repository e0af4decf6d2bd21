"""How varied a text is, as numbers: n-gram entropy, distinct n-grams, repetition; per text, and averaged over texts.

A text is any sequence of hashable units (token ids, words). Pure Python; knows no model: how likely a model finds a
text is in `lade.measure.likelihood`.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial

Text = Sequence[Hashable]
Value = float | None  # None: the text is too short for the measure


def ngrams(text: Text, n: int) -> Counter[tuple[Hashable, ...]]:
    """All runs of n neighbouring units and how often they stand in the text; len(text) - n + 1 in all.

    Raises:
        ValueError: n is below 1.
    """
    if n < 1:
        raise ValueError(f"n={n}: allowed is an integer of at least 1")
    return Counter(tuple(text[start : start + n]) for start in range(len(text) - n + 1))


def ngram_entropy(text: Text, n: int) -> Value:
    """Shannon entropy, in nats, of drawing one n-gram of the text: -sum f/F log(f/F), F = sum f.

    From 0 (one n-gram only) to log(len(text) - n + 1) (no two alike). "Ent-n" of Zhang et al., arXiv 1809.05972. `None`
    where the text has no n-gram.
    """
    counts = ngrams(text, n).values()
    total = sum(counts)
    return math.fsum(count / total * math.log(total / count) for count in counts) if total else None


def distinct(text: Text, n: int) -> Value:
    """Different n-grams over all n-grams, above 0 and at most 1.

    "distinct-n" of Li et al., arXiv 1510.03055, who divide by the number of tokens instead: the same at n = 1, and less
    by the factor (len(text) - n + 1) / len(text) beyond. `None` where the text has no n-gram.
    """
    counts = ngrams(text, n)
    return len(counts) / counts.total() if counts else None


def repetition(text: Text, n: int) -> Value:
    """Share of the n-grams that stood in the text before, at least 0 and below 1: 1 - distinct.

    "seq-rep-n" of Welleck et al., arXiv 1908.04319. `None` where the text has no n-gram.
    """
    share = distinct(text, n)
    return None if share is None else 1 - share


def diversity(text: Text) -> Value:
    """Product of `distinct` at n = 2, 3 and 4, above 0 and at most 1 (Su et al., arXiv 2202.06417); `None` below 4."""
    shares = [distinct(text, n) for n in (2, 3, 4)]
    return math.prod(share for share in shares if share is not None) if None not in shares else None


# A later measure needs its row here and nothing elsewhere.
MEASURES: dict[str, Callable[[Text], Value]] = {
    **{f"entropy-{n}": partial(ngram_entropy, n=n) for n in (1, 2, 3)},
    **{f"distinct-{n}": partial(distinct, n=n) for n in (1, 2, 3)},
    "repetition-4": partial(repetition, n=4),
    "diversity": diversity,
}


def measures_of(text: Text) -> dict[str, Value]:
    """Every measure of one text."""
    return {name: measure(text) for name, measure in MEASURES.items()}


def averaged(texts: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    """Per measure its mean over the texts that have it, each text weighing the same; `None` where none has it."""
    values: dict[str, list[float]] = {}
    for measures in texts:
        for name, value in measures.items():
            values.setdefault(name, []).extend([] if value is None else [value])
    return {name: math.fsum(found) / len(found) if found else None for name, found in values.items()}
