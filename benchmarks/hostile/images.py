"""Images in the prompts of one request: where they stand in its text, and what else the model gets for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from multimodal import END, IMAGE, START, WORDS

from hostile.case import Case
from hostile.subjects import SEEING

MOST = 3  # images of a request
SEEDS = 3  # different images
LONGEST = 180  # tokens of earlier turns


def drawn(draws: random.Random, most: int = MOST) -> tuple[int, ...]:
    """The seeds of some images."""
    return tuple(draws.randrange(SEEDS) for _ in range(draws.randint(0, most)))


def with_images(case: Case, draws: random.Random, text: list[int]) -> list[int]:
    """The tokens of a prompt: those of earlier turns, and the text with the places of new images anywhere in it."""
    each = SEEING[case.model].tokens
    early = draws.random() < 0.5  # else what comes behind the last one is too short to be kept for later turns
    for _ in case.images[case.before.count(IMAGE) // each :]:
        places = [place for place in range(len(text) + 1) if _is_between(text[:place])]
        place = draws.choice(places[:3] if early else places)
        text = [*text[:place], START, *[IMAGE] * each, END, *text[place:]]
    return [*case.before, *text]


def _is_between(before: Sequence[int]) -> bool:
    """Whether a text ends within no image."""
    return before.count(START) == before.count(END)


def inputs(case: Case, ids: torch.Tensor) -> dict[str, Any]:
    """What the model gets beside [1, P] token ids."""
    kind = SEEING[case.model]
    if not case.images:
        return {}
    images = [kind.image(seed) for seed in case.images]
    found = {name: torch.cat([image[name] for image in images]) for name in images[0]}
    return found if kind.types is None else found | {kind.types: (ids == IMAGE).long()}


def following(case: Case, earlier: Case, text: Sequence[int], prompt: int, draws: random.Random) -> Case:
    """The case as the next turn of an earlier one, about the same images; a few are about others in their places.

    Args:
        text: the earlier prompt, of this length, with its answer.
    """
    words = [token if token < WORDS[1] else WORDS[0] for token in text[prompt:]]  # an answer has no images
    same = draws.random() < 0.7
    images = earlier.images if same else tuple(draws.randrange(SEEDS) for _ in earlier.images)
    new = drawn(draws, min(1, MOST - len(images)))
    return replace(case, before=(*text[:prompt], *words), images=images + new, lengths=(draws.randint(1, 9),))
