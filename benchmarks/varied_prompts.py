"""Prompts of one length, from the suites that ship; those first after which a model repeats itself little.

Drafts of a text that repeats itself are too easy: their speed says little of other text.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ratios import is_varied

from lade.applications.bench.conversation import Conversation, Style
from lade.applications.bench.suites import SUITES
from lade.applications.text_measures import repetition

ASKED = ("mt_bench", "gsm8k", "human_eval", "mbpp", "stories")
EACH = 6  # prompts of a suite


def candidates(tokenizer: Any, tokens: int) -> Iterator[list[int]]:
    """Prompts of so many tokens, of all suites in turn: each ends with a question; others of its suite precede."""
    style, texts = Style(tokenizer), {suite: [prompt.text for prompt in SUITES[suite].load()] for suite in ASKED}
    head = common_head(*(Conversation(style).ask(text) for text in texts[ASKED[0]][:2]))
    for number, suite in itertools.product(range(EACH), ASKED):
        own = texts[suite]
        several, ids = itertools.cycle(own[number:] + own[:number]), list[int]()
        text = next(several)
        while len(ids) < tokens:
            ids = Conversation(style).ask(text)
            text = f"{next(several)}\n\n{text}"
        yield ids[:head] + ids[len(ids) - tokens + head :]


def common_head(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first tokens are the same."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def varied(prompts: Iterable[list[int]], count: int, decode: Callable[[list[int]], Sequence[int]]) -> list[list[int]]:
    """The first prompts after which a model's text `is_varied`; where they are too few, others too.

    Args:
        decode: the text after a prompt.
    """
    kept, others = list[list[int]](), list[list[int]]()
    for prompt in prompts:
        (kept if is_varied(repetition(list(decode(prompt)), 4)) else others).append(prompt)
        if len(kept) == count:
            break
    return (kept + others)[:count]
