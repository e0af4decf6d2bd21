"""Rounds that draft on the device: the text of plain decoding, no transfer, no graph break, and the trees they grow."""

import heapq
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from families import BY_NAME
from hypothesis import given, settings
from hypothesis import strategies as st
from staticmodels import FAMILIES, WARPERS, ReadPrompts, model_for, plain, slots_on_meta
from test_transfers import META, Transfers
from tiny import tiny_model

from lade.base.compiled import viewed
from lade.core.noise import Noise
from lade.memory.backoff import backoff, find_warm
from lade.memory.context import CONTEXT, NOTHING
from lade.memory.predictions import TOP
from lade.memory.warmtable import WarmContexts, WarmTable
from lade.static.choices import Greedy, NoiseRing, Sampled
from lade.static.rounds import recall as recall_module
from lade.static.rounds.coupled import Coupled
from lade.static.rounds.ends import Ends
from lade.static.rounds.growing import BELOW, SHARES, Growing
from lade.static.rounds.loop import DeviceLoop, Place
from lade.static.rounds.recall import BITS, FOLLOWED, LONGEST, Recall
from lade.static.rounds.step import TREE, RoundStep
from lade.static.rounds.warmarrays import WarmArrays
from lade.static.step import NOT_A_NUMBER
from lade.static.walking import RIGHT

NEW, NODES, DEPTH, ROUNDS = 20, 8, 3, 3
CPU = torch.device("cpu")
VOCABULARY = 6  # so small that contexts occur again


class Rounds(ReadPrompts):
    """Prompts decoded by rounds on the device."""

    def __init__(self, model: Any, lengths: Sequence[int], sampled: bool = False, stops: Sequence[int] = ()) -> None:
        super().__init__(model, lengths, 256, (ROUNDS + 1) * (DEPTH + 1), sampled)
        self.ends = [len(prompt) + NEW for prompt in self.prompts]
        self.texts = [[*prompt, token] for prompt, token in zip(self.prompts, self.first, strict=True)]
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        coupled = Coupled(self.slots, self.ring) if sampled else None
        self.recall, ends = Recall(len(lengths) + 1, vocabulary, CPU), Ends(model, self.slots)
        growing = Growing(self.recall, None, NODES, DEPTH, coupled)
        rows = 1 if len(lengths) == 1 else 4
        self.loop = DeviceLoop(RoundStep(model, self.slots, self.chooser, rows, growing, ends, ROUNDS))
        self.steps = 0
        for slot, text in zip(self.order, self.texts, strict=True):
            self.recall.begin(slot, text)
            ends.begin(slot, stops)

    def emitted(self, row: int) -> int:
        return NEW - (self.ends[row] - len(self.texts[row]))

    def visit(self, rows: Sequence[int]) -> None:
        slots = [self.order[row] for row in rows]
        if self.noise is not None:
            for slot, row in zip(slots, rows, strict=True):
                left = self.ends[row] - len(self.texts[row])
                self.ring.fill(self.noise, slot, row, self.emitted(row), left)
        places = [
            Place(slot, self.texts[row], self.ends[row] - len(self.texts[row]), self.emitted(row))
            for slot, row in zip(slots, rows, strict=True)
        ]
        found = self.loop.run(places, ROUNDS).swapaxes(0, 1)
        for row, steps in zip(rows, found, strict=False):
            for step in steps:
                emitted = emitted_of(step)
                self.texts[row] += emitted
                self.steps += bool(emitted)
            assert self.loop.step.slots.lengths[self.order[row]] == len(self.texts[row]) - 1

    def decode(self) -> list[list[int]]:
        while rows := [row for row, end in enumerate(self.ends) if len(self.texts[row]) < end]:
            self.visit(rows)
        return [text[-NEW:] for text in self.texts]


def emitted_of(step: np.ndarray) -> list[int]:
    """The tokens that a round has emitted in a row, of its [T, 4 + 2k] nodes."""
    assert not (step[:, TREE + 1] & NOT_A_NUMBER).any()
    return step[step[:, TREE + 1] & RIGHT > 0, TREE].tolist()


@pytest.mark.parametrize(
    ("name", "lengths", "sampled"),
    [("llama", (9,), False), ("llama", (9, 4, 11), False), ("gemma3", (9, 4, 11, 6), True), ("gpt2", (5,), True)],
)
@torch.no_grad()
def test_text_of_plain_decoding(name: str, lengths: tuple[int, ...], sampled: bool) -> None:
    model = model_for(name, len(lengths))
    reference = plain(model, lengths, NEW, sampled)
    torch.manual_seed(3)
    rounds = Rounds(model, lengths, sampled)
    assert rounds.decode() == reference


@torch.no_grad()
def test_drafts_are_accepted() -> None:
    """A model that repeats itself is read off its own predictions."""
    rounds = Rounds(tiny_model(BY_NAME["llama"], "sdpa", torch.float64), (9,))
    rounds.decode()
    assert rounds.steps < NEW - 4


@torch.no_grad()
def test_a_text_ends_at_its_first_stop_token() -> None:
    model = model_for("llama", 1)
    whole = plain(model, (9,), NEW, False)[0]
    stop = whole[2]
    rounds = Rounds(model, (9,), stops=[stop])
    assert stop != whole[0], "the first token is not one of a round"
    rounds.recall.begin(0, [*rounds.texts[0], *whole[1:]])  # so that what follows is drafted
    rounds.visit([0])
    ended = whole[: whole.index(stop) + 1]
    assert rounds.texts[0][9:] == ended
    assert rounds.steps == 1
    assert rounds.loop.step.left[0] == 0


@torch.no_grad()
def test_a_text_ends_where_there_is_no_distribution() -> None:
    model = model_for("llama", 1)
    whole = plain(model, (9,), NEW, False)[0]
    last = whole[2]

    def chooser(logits: torch.Tensor, inputs: Any, slots: Any) -> torch.Tensor:
        return torch.where(inputs.ids == last, -1, Greedy()(logits, inputs, slots))

    rounds = Rounds(model, (9,))
    rounds.loop.step.chooser = chooser
    rounds.recall.begin(0, [*rounds.texts[0], *whole[1:]])  # so that what follows is drafted
    rounds.visit([0])
    assert rounds.texts[0][9:] == [*whole[: whole.index(last) + 1], -1]
    assert rounds.steps == 1
    assert rounds.loop.step.left[0] == 0


@torch.no_grad()
def test_nan_stops_a_row_alone() -> None:
    model = model_for("llama", 2)
    reference = plain(model, (9, 4), NEW, False)
    rounds = Rounds(model, (9, 4))
    broken = rounds.order[1]
    rounds.loop.step.slots.cache.layers[0].keys[:, :, broken * rounds.loop.step.slots.capacity] = torch.nan
    places = [Place(slot, rounds.texts[row], NEW - 1, 1) for row, slot in enumerate(rounds.order)]
    found = rounds.loop.run(places, ROUNDS)
    whole = [token for step in found[:, 0] for token in emitted_of(step)]
    assert whole == reference[0][1 : 1 + len(whole)]
    assert len(whole) >= ROUNDS
    assert (found[0, 1, :, TREE + 1] & NOT_A_NUMBER).all()
    assert not (found[:, 1, :, TREE + 1] & RIGHT).any()


@pytest.mark.parametrize("sampled", [False, True], ids=("greedy", "sampled"))
@pytest.mark.parametrize("rows", [1, 3])
@torch.no_grad()
def test_no_transfer_in_a_round(rows: int, sampled: bool) -> None:
    """On the meta device, of which the host can read nothing."""
    model, slots = slots_on_meta("llama", rows, 60)
    ring = NoiseRing(slots, model.config.vocab_size, 16)
    all_sampled = torch.ones(rows + 1, dtype=torch.bool, device=META)
    chooser, coupled = (Sampled(WARPERS, ring, all_sampled), Coupled(slots, ring)) if sampled else (Greedy(), None)
    growing = Growing(Recall(rows + 1, model.config.vocab_size, META), None, NODES, DEPTH, coupled)
    step = RoundStep(model, slots, chooser, rows, growing, Ends(model, slots), ROUNDS)
    loop = DeviceLoop(step)
    with Transfers() as transfers:
        loop.run([Place(slot, [3, 4, 5], 9) for slot in range(rows)], ROUNDS)
    assert len(transfers.down) == len(transfers.up) == 1, (transfers.down, transfers.up)
    with Transfers() as transfers:
        step.round()
    assert not transfers.down
    assert not transfers.up


@pytest.mark.real
@pytest.mark.parametrize("sampled", [False, True], ids=("greedy", "sampled"))
@pytest.mark.parametrize("lengths", [(9,), (9, 4, 11, 6)], ids=("alone", "four"))
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_one_graph(name: str, lengths: tuple[int, ...], sampled: bool) -> None:
    """What dynamo traces whole has no decision of the host in it: a CUDA graph can be captured of it."""
    model = model_for(name, len(lengths))
    reference = plain(model, lengths, NEW, sampled)
    torch.manual_seed(3)
    rounds = Rounds(model, lengths, sampled)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    step = rounds.loop.step
    compiled = torch.compile(step.round, fullgraph=True, dynamic=False, backend="eager")

    def run() -> None:
        with step.attending(traced=True):
            compiled()

    rounds.loop._round = run
    assert rounds.decode() == reference
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


contexts = st.lists(st.integers(0, VOCABULARY - 1), min_size=LONGEST, max_size=LONGEST)
predictions = st.tuples(
    st.integers(0, 1),
    contexts,
    st.permutations(range(VOCABULARY)),
    st.lists(st.floats(0.0625, 1, width=32), min_size=VOCABULARY, max_size=VOCABULARY, unique=True),
    st.booleans(),
)


def stored(steps: Sequence[Sequence[Any]], recall: Recall) -> dict[tuple[int, ...], dict[int, float]]:
    """Steps of predictions stored on the device, and as a dictionary: slot and context -> token -> probability."""
    known: dict[tuple[int, ...], dict[int, float]] = {}
    for step in steps:
        slots, ends, tokens, masses, kept = zip(*step, strict=True)
        masses = [sorted(each, reverse=True) for each in masses]
        told = torch.tensor(slots), torch.tensor(ends), torch.tensor(tokens), torch.tensor(masses), torch.tensor(kept)
        recall.learn(*told)
        for slot, end, token, mass, stays in zip(slots, ends, tokens, masses, kept, strict=True):
            for length in range(1, LONGEST + 1) if stays else ():
                known[slot, *end[-length:]] = dict(zip(token, mass, strict=True))
    return known


@pytest.mark.slow
@pytest.mark.real
@torch.no_grad()
def test_text_by_the_compiler() -> None:
    model = model_for("llama", 1)
    torch._dynamo.reset()
    rounds = Rounds(model, (9,))
    rounds.loop.step.fuse()
    assert rounds.decode() == plain(model, (9,), NEW, False)


def recalled(recall: Recall, slot: int, context: list[int]) -> list[dict[int, float]]:
    """Per length of the context: token -> probability."""
    tokens, masses = recall.find(torch.tensor([slot]), torch.tensor([context]))
    return [
        {token: mass for token, mass in zip(*each, strict=True) if mass > 0}
        for each in zip(tokens[0].tolist(), masses[0].tolist(), strict=True)
    ]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(predictions, min_size=1, max_size=6), max_size=4), st.integers(0, 1), contexts)
def test_the_newest_prediction_of_a_context_is_found(steps: Any, slot: int, context: list[int]) -> None:
    recall = Recall(2, VOCABULARY, CPU)
    known = stored(steps, recall)
    for length, found in enumerate(recalled(recall, slot, context), 1):
        assert found == known.get((slot, *context[-length:]), {})


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(predictions, min_size=1, max_size=6), min_size=1, max_size=4), contexts)
def test_contexts_that_share_a_place_are_told_apart(steps: Any, context: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recall_module, "PLACES", 2)
        recall = Recall(2, VOCABULARY, CPU)
        known = stored(steps, recall)
        for slot in (0, 1):
            for length, found in enumerate(recalled(recall, slot, context), 1):
                assert found in ({}, known.get((slot, *context[-length:]), {}))


def test_what_followed_in_a_prompt_is_known_at_once() -> None:
    recall = Recall(1, VOCABULARY, CPU)
    recall.begin(0, [1, 2, 3, 1, 2, 4])
    tokens, masses = recall.find(torch.tensor([0, 0]), torch.tensor([[NOTHING, 1, 2], [3, 1, 2]]))
    assert tokens[:, :, 0].tolist() == [[4, 4, 3], [4, 4, 4]]
    assert masses[0, :, 0].tolist() == pytest.approx([FOLLOWED] * LONGEST)
    recall.begin(0, [5])
    assert not recall.find(torch.tensor([0]), torch.tensor([[3, 1, 2]]))[1].any()


def knowing(seed: int) -> Coupled:
    """Two slots whose noise is known."""
    slots: Any = SimpleNamespace(count=2, lengths=torch.zeros(3), emitted=torch.tensor([3, 5, 0]))
    ring, noise = NoiseRing(slots, VOCABULARY, 8), Noise(2, CPU, torch.Generator().manual_seed(seed))
    for slot in (0, 1):
        ring.fill(noise, slot, slot, int(slots.emitted[slot]), left=8)
    return Coupled(slots, ring)


def best_first(growing: Growing, slot: int, context: list[int]) -> dict[tuple[int, ...], float]:
    """Path -> probability of a tree that grows node by node on the host."""
    found: dict[tuple[int, ...], float] = {}
    heap, count = [(-1.0, ())], growing.nodes
    while heap and len(found) < count:
        mass, path = heapq.heappop(heap)
        found[path] = -mass
        if len(path) < growing.depth:
            end = torch.tensor([[*context, *path][-LONGEST:]])
            tokens, masses = growing.chosen(torch.tensor([slot]), len(path), end)
            for token, share in zip(tokens[0].tolist(), masses[0].tolist(), strict=True):
                if share > 0:
                    heapq.heappush(heap, (mass * share * BELOW, (*path, token)))
    return found


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(predictions, min_size=1, max_size=8), min_size=1, max_size=3),
    st.integers(2, 24),
    st.integers(2, 5),
    contexts,
    st.none() | st.integers(0, 10_000),
)
def test_trees_are_those_of_best_first_growth(
    steps: Any, nodes: int, depth: int, context: list[int], seed: int | None
) -> None:
    recall = Recall(2, VOCABULARY, CPU)
    stored(steps, recall)
    growing = Growing(recall, None, nodes, depth, None if seed is None else knowing(seed))
    trees = growing.grow(torch.tensor([0, 1]), torch.tensor([context, context[::-1]]))
    for row, own in enumerate((context, context[::-1])):
        paths: list[tuple[int, ...]] = [()]
        tokens, parents = trees.tokens[row].tolist(), trees.parents[row].tolist()
        for node in range(1, nodes):
            assert parents[node] < node
            paths.append((*paths[parents[node]], tokens[node]))
        used = trees.masses[row] > 0
        found = {path: mass for path, mass, kept in zip(paths, trees.masses[row].tolist(), used, strict=True) if kept}
        expected = best_first(growing, row, own)
        assert sorted(found.values()) == pytest.approx(sorted(expected.values()), rel=1e-4)
        least = min(found.values())
        clear = {path for path, mass in expected.items() if mass > least * (1 + 1e-4)}
        assert clear <= set(found)
        for node, path in enumerate(paths):
            if used[node]:
                assert trees.depths[row, node] == len(path)
                assert trees.contexts[row, node].tolist() == [*own, *path][-LONGEST:]


def test_what_all_lengths_say_of_a_token_adds_up() -> None:
    recall = Recall(1, VOCABULARY, CPU)
    ones = torch.zeros(1, dtype=torch.long)
    recall.learn(ones, torch.tensor([[5, 1, 2]]), torch.tensor([[3]]), torch.tensor([[0.5]]), ones == 0)
    recall.learn(ones, torch.tensor([[4, 0, 2]]), torch.tensor([[4, 3]]), torch.tensor([[0.6, 0.2]]), ones == 0)
    tokens, masses = Growing(recall, None, 4).expect(ones, torch.tensor([[5, 1, 2]]))
    found = {token: mass for token, mass in zip(tokens[0].tolist(), masses[0].tolist(), strict=True) if mass > 0}
    longest, middle, shortest, _ = SHARES
    left = (1 - longest) * (1 - middle) * shortest
    assert found[3] == pytest.approx(longest * 0.5 + (1 - longest) * middle * 0.5 + left * 0.2)
    assert found[4] == pytest.approx(left * 0.6)


@given(st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=CONTEXT), max_size=12), contexts)
@settings(max_examples=40, deadline=None)
def test_a_warm_table_is_read_as_on_the_host(endings: list[list[int]], context: list[int]) -> None:
    """By contexts of up to three tokens."""
    known = [list(each) for each in dict.fromkeys(map(tuple, endings))]
    noise = torch.Generator().manual_seed(len(known))

    def made(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        masses = torch.rand(rows, 4, generator=noise).sort(descending=True)[0] / 4
        return torch.randint(VOCABULARY, (rows, 4), generator=noise, dtype=torch.int32), masses

    padded = torch.tensor([[NOTHING] * (CONTEXT - len(each)) + each for each in known], dtype=torch.int32)
    table = WarmTable(*made(VOCABULARY), WarmContexts(padded.reshape(-1, CONTEXT), *made(len(known))), 0.0)
    arrays, heats = WarmArrays(backoff(table, 1.0), torch.tensor([1.0, 1.3, 0.2])), (1.0, 1.3, 0.2)
    slot = noise.initial_seed() % len(heats)
    host = backoff(table, heats[slot])
    tokens, masses = arrays.find(torch.tensor([slot]), torch.tensor([context]))
    row, length = find_warm(*viewed(host), -9, *context)
    assert length <= LONGEST
    begin = int(host.ints[6]) + row * 4
    assert tokens[0, :4].tolist() == host.ints[begin : begin + 4].tolist()
    assert masses[0].tolist() == pytest.approx([*host.masses[row * 4 : row * 4 + 4].tolist(), *[0.0] * (TOP - 4)])


def test_refusals() -> None:
    with pytest.raises(ValueError, match=f"vocabulary must be below {1 << BITS}, got {1 << BITS}"):
        Recall(1, 1 << BITS, CPU)
    recall = Recall(1, VOCABULARY, CPU)
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        Growing(recall, None, 8, 0)
    with pytest.raises(ValueError, match="nodes must be from 2 to 9 at depth 1, got 10"):
        Growing(recall, None, 10, 1)
    rounds = Rounds(model_for("llama", 1), (9,))
    place = Place(0, rounds.texts[0], 5)
    for places, number, told in (
        ([place], 0, "rounds must be from 1 to 3, got 0"),
        ([place, place], 1, "places must be from 1 to 1, got 2"),
        ([place._replace(text=[3] * 250)], 1, "places must leave slots of 256 tokens room, got a need of 262"),
    ):
        with pytest.raises(ValueError, match=told):
            rounds.loop.run(places, number)
