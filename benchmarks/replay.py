"""Drafting without the model: greedy texts, and the model's predictions after every path that a draft tree may hold.

A text and the predictions after it do not depend on how it was drafted. So they are computed once, and other settings
of the drafter are tried in a fraction of the time. Predictions that a replay asks for and that are not known are
computed in one forward behind it (`Recorder.fill`); until then it gets those of another place with the same last token,
which makes sources that learn from the model look worse than they are: check what wins with `real_text.py`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lade
from lade.core.request import Request, Verdict
from lade.core.topk import likeliest
from lade.core.tree import Draft
from lade.core.verify import walk
from lade.drafters.blend import BlendDrafter
from lade.memory.predictions import TOP

HEATS = (1.0, 1.3, 1.6, 2.0)  # inverse temperatures of the predictions
KEPT = 16  # tokens of a prediction
NODES = 512  # of a forward

Entry = tuple[list[int], list[float]]  # tokens and their probabilities, likeliest first
Place = tuple[int, tuple[int, ...]]  # how many tokens of the text come first, and the other tokens behind them


@dataclass(eq=False)
class Recording:
    """One text.

    Attributes:
        group: a suite or category.
        tokens: prompt and answer.
        prompt_length: tokens of the prompt.
        rows: place -> its row in tokens and probabilities.
        ids: [n, KEPT], likeliest first.
        probabilities: [n, HEATS, KEPT].
        missing: places that were asked for and are not known.
    """

    group: str
    tokens: list[int]
    prompt_length: int
    rows: dict[Place, int] = field(default_factory=dict)
    ids: np.ndarray = field(default_factory=lambda: np.zeros((0, KEPT), np.int32))
    probabilities: np.ndarray = field(default_factory=lambda: np.zeros((0, len(HEATS), KEPT), np.float32))
    missing: set[Place] = field(default_factory=set)
    _entries: dict[tuple[int, int], Entry] = field(default_factory=dict, repr=False)
    _alike: dict[int, int] = field(default_factory=dict, repr=False)  # last token -> a row

    def after(self, place: Place, token: int) -> Place:
        """The place one token further."""
        at, path = place
        if not path and at < len(self.tokens) and self.tokens[at] == token:
            return at + 1, ()
        return at, (*path, token)

    def last(self, place: Place) -> int:
        at, path = place
        return path[-1] if path else self.tokens[at - 1]

    def entry(self, place: Place, heat: int) -> Entry:
        """The `TOP` likeliest tokens at an inverse temperature, given by its index, and their probabilities."""
        row = self.rows.get(place)
        if row is None:
            self.missing.add(place)
            row = self._alike.get(self.last(place), 0)
        found = self._entries.get((row, heat))
        if found is None:
            found = self.ids[row, :TOP].tolist(), self.probabilities[row, heat, :TOP].tolist()
            self._entries[row, heat] = found
        return found

    def add(self, places: Sequence[Place], ids: np.ndarray, probabilities: np.ndarray) -> None:
        for row, place in enumerate(places, len(self.ids)):
            self.rows[place] = row
            self._alike[self.last(place)] = row
        self.ids = np.concatenate([self.ids, ids])
        self.probabilities = np.concatenate([self.probabilities, probabilities])
        self.missing.difference_update(places)


@dataclass(frozen=True)
class Computed:
    """The predictions of one forward (`lade.core.drafter.Predictions`)."""

    recording: Recording
    places: Sequence[Place]
    heat: int

    def likeliest(self) -> tuple[np.ndarray, np.ndarray]:
        tokens, probabilities = zip(*(self.recording.entry(place, self.heat) for place in self.places), strict=True)
        return np.array(tokens, np.int32), np.array(probabilities, np.float32)

    def lines_of(self, slot: int, nodes: Sequence[int]) -> list[int]:
        return [*nodes]

    def greedy(self, slot: int, node: int) -> int:
        return self.recording.entry(self.places[node], self.heat)[0][0]


@dataclass
class Count:
    """Tokens and steps of replays."""

    new_tokens: int = 0
    steps: int = 0
    forward_tokens: int = 0

    @property
    def tokens_per_step(self) -> float:
        return self.new_tokens / max(self.steps, 1)

    @property
    def mean_forward_tokens(self) -> float:
        return self.forward_tokens / max(self.steps, 1)


def replay(
    recording: Recording,
    drafter: BlendDrafter,
    count: Count,
    heat: float = HEATS[1],
    seen: Callable[[Request, Verdict], None] = lambda request, verdict: None,
) -> None:
    """Decode the text again, and count.

    Args:
        seen: called with every verdict, before the drafter learns from it.
    """
    tokens, index = recording.tokens, HEATS.index(heat)
    limit = len(tokens) - recording.prompt_length
    start = tokens[: recording.prompt_length + 1]
    request = Request(0, start, recording.prompt_length, limit, inverse_temperature=heat)
    drafter.start(request)
    count.new_tokens += limit

    def emit(token: int) -> bool:
        request.tokens.append(token)
        return request.emitted == limit

    while request.emitted < limit:
        (draft,) = drafter.draft([request], [limit - request.emitted - 1])
        begin = len(request.tokens)
        verdict = walk(draft, lambda _: tokens[len(request.tokens)], emit)
        seen(request, verdict)
        drafter.observe([request], [draft], [verdict], Computed(recording, places(recording, draft, begin), index))
        count.steps += 1
        count.forward_tokens += len(draft)


def places(recording: Recording, draft: Draft, begin: int) -> list[Place]:
    """Those of a draft's nodes; its root is the last of `begin` tokens."""
    found: list[Place] = [(begin, ())]
    for parent, token in zip(draft.parents[1:], draft.tokens[1:], strict=True):
        found.append(recording.after(found[parent], token))
    return found


class Recorder:
    """A model that writes texts and predicts.

    Args:
        model: on the CPU.
        new_tokens: the most of an answer.
    """

    def __init__(self, model: Any, new_tokens: int) -> None:
        self.model, self.new_tokens = model, new_tokens

    def record(self, group: str, prompt: Sequence[int]) -> Recording:
        """The greedy answer to a prompt, and the predictions along both."""
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        text = lade.generate(
            self.model, input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=self.new_tokens
        )
        recording = Recording(group, text[0].tolist(), len(prompt))
        self.fill(recording)
        return recording

    @torch.no_grad()
    def fill(self, recording: Recording) -> int:
        """Compute what is missing. Returns how many places."""
        text = torch.tensor([recording.tokens])
        outputs = self.model.model(input_ids=text, use_cache=True)
        if not recording.rows:
            known: list[Place] = [(at, ()) for at in range(1, len(recording.tokens) + 1)]
            self._add(recording, known, outputs.last_hidden_state[0])
        missing = sorted(recording.missing)
        cache, length = outputs.past_key_values, len(recording.tokens)
        for start in range(0, len(missing), NODES):
            self._paths(recording, missing[start : start + NODES], cache)
            cache.crop(length - cache.get_seq_length())
        return len(missing)

    def _paths(self, recording: Recording, wanted: Sequence[Place], cache: Any) -> None:
        """One forward of places beside the text, with their ancestors."""
        nodes = sorted({(at, path[:end]) for at, path in wanted for end in range(1, len(path) + 1)})
        number = {place: index for index, place in enumerate(nodes)}
        length, size = len(recording.tokens), len(nodes)
        sees = torch.zeros(size, length + size, dtype=torch.bool)
        for index, (at, path) in enumerate(nodes):
            sees[index, :at] = True
            if len(path) > 1:
                sees[index, length:] = sees[number[at, path[:-1]], length:]
            sees[index, length + index] = True
        mask = torch.zeros(sees.shape, dtype=self.model.dtype).masked_fill_(~sees, torch.finfo(self.model.dtype).min)
        outputs = self.model.model(
            input_ids=torch.tensor([[path[-1] for _, path in nodes]]),
            position_ids=torch.tensor([[at + len(path) - 1 for at, path in nodes]]),
            attention_mask=mask[None, None],
            past_key_values=cache,
            use_cache=True,
        )
        fresh = [index for index, place in enumerate(nodes) if place not in recording.rows]
        self._add(recording, [nodes[index] for index in fresh], outputs.last_hidden_state[0, fresh])

    def _add(self, recording: Recording, found: Sequence[Place], states: torch.Tensor) -> None:
        logits = self.model.lm_head(states)  # [n, V]
        tops = [likeliest(logits, KEPT, heat) for heat in HEATS]
        probabilities = torch.stack([values for _, values in tops], dim=1)  # [n, HEATS, KEPT]
        recording.add(found, tops[0][0].int().numpy(), probabilities.numpy())


def save(recordings: Iterable[Recording], path: Path) -> None:
    with path.open("wb") as file:
        pickle.dump([(r.group, r.tokens, r.prompt_length, r.rows, r.ids, r.probabilities) for r in recordings], file)


def load(path: Path) -> list[Recording]:
    """What `save` wrote."""
    with path.open("rb") as file:
        found = [Recording(*each) for each in pickle.load(file)]
    for recording in found:
        for place, row in recording.rows.items():
            recording._alike[recording.last(place)] = row
    return found
