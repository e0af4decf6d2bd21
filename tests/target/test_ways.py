"""Ways of attention: each against the formula over all keys; and which of them is chosen."""

import copy
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import BY_NAME, PACKED
from hypothesis import given, settings
from hypothesis import strategies as st
from rowcalls import Row, call_of, expected_of
from tiny import tiny_model, with_low_caps, words

import lade
from lade.target import choice, model, own
from lade.target.choice import Choice, Ways, choice_for
from lade.target.definition import dense
from lade.target.looped import Looped
from lade.target.partial import HostKernels
from lade.target.rowloops import ATTEND
from lade.target.ways import Call, Defined, Masked, Split, Together, Way

SPLIT = Split(HostKernels(), 1)
BATCHES = ("llama", "mistral-sliding")


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 70)), min_size=1, max_size=3),
    st.sampled_from([(1, 1), (2, 1), (2, 3)]),
    st.integers(0, 99),
)
def test_every_way_is_attention_to_all_keys(
    sizes: list[tuple[int, int, int]], heads: tuple[int, int], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = [Row(*size, generator) for size in sizes]
    call = call_of(rows, *heads, generator)
    expected = expected_of(call, rows)
    for way in (SPLIT, Masked()):
        assert way.fits(call)
        assert torch.allclose(way.attend(call), expected, atol=1e-12, rtol=0)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 20)), min_size=1, max_size=3),
    st.sampled_from([(1, 1), (2, 3)]),
    st.sampled_from([None, 0.7]),
    st.booleans(),
    st.integers(0, 99),
)
def test_ways_with_soft_caps_and_sinks(
    sizes: list[tuple[int, int, int]], heads: tuple[int, int], cap: float | None, sunk: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = [Row(*size, generator) for size in sizes]
    call = call_of(rows, *heads, generator)
    call.cap, call.sinks = cap, torch.randn(heads[0] * heads[1], generator=generator) if sunk else None
    spans = pairwise([0, *accumulate(row.nodes for row in rows)])
    states = [(call.query[:, :, first:last], *kv_of(call, row)) for row, (first, last) in enumerate(spans)]
    alone = [dense(*each, row.mask[None, None], call.rules()) for each, row in zip(states, rows, strict=True)]
    fitting = [way for way in (SPLIT, Masked(), Together(), Defined()) if way.fits(call)]
    assert [way.name for way in fitting] == EXPECTED[cap is not None, sunk]
    for way in fitting:
        assert torch.allclose(way.attend(call), torch.cat(alone, 1), atol=1e-7, rtol=0)  # weights pass through float32


EXPECTED = {
    (False, False): ["split", "masked"],
    (False, True): ["split", "defined"],
    (True, False): ["defined"],
    (True, True): ["defined"],
}


def kv_of(call: Call, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    begin, end = call.kind.spans[row]
    return call.key[:, :, begin:end], call.value[:, :, begin:end]


def test_scores_that_no_way_knows_are_an_error() -> None:
    generator = torch.Generator().manual_seed(0)
    call = call_of([Row(1, 5, 3, generator)], 2, 2, generator)
    call.cap = 1.0
    with pytest.raises(NotImplementedError, match="scores"):
        choice_for(Ways((Masked(),)), call)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("family", "way"), [("gemma2", "defined"), ("gpt_oss", "split")])
def test_texts_of_models_with_soft_caps_or_sinks(
    family: str, way: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded with "lade", they are packed; the texts are those of eager attention too."""
    monkeypatch.setattr(model, "ways_of", lambda *args: Ways((SPLIT, Defined()), timed=False))
    network, given = (
        with_low_caps(copy.deepcopy(tiny_model(BY_NAME[family], "eager", dtype))),
        {"do_sample": False, "max_new_tokens": 12},
    )
    config = lade.LookaheadConfig(mode="lookahead", ngram=4, window=4, guesses=4)
    own.install()
    eager = network.generate(**words(14), **given)
    network.set_attn_implementation(own.NAME)
    assert torch.equal(network.generate(**words(14), **given), eager)
    for lengths in ((14,), (9, 4)):
        expected = network.generate(**words(*lengths), **given)
        assert torch.equal(lade.generate(network, **words(*lengths), **given, config=config), expected)
        stats = lade.last_stats()
        assert stats is not None
        assert stats.fallback is None
        assert stats.attention[way] > 0
        assert stats.attention.keys() <= {"split", "defined", "single"}
    own.remove()


def test_a_prefix_is_split_off_where_every_row_has_one() -> None:
    generator = torch.Generator().manual_seed(0)
    call = call_of([Row(1, 5, 3, generator), Row(0, 4, 2, generator)], 2, 2, generator)
    assert Split(HostKernels(), 4).fits(call)
    assert not Split(HostKernels(), 5).fits(call)
    assert not SPLIT.fits(Call(call.kind, call.query, call.key, call.value, dropout=0.1))
    assert not SPLIT.fits(Call(call.kind, call.query, call.key, call.value[..., :4]))


@pytest.mark.parametrize(
    ("way", "lengths"),
    [(SPLIT, (14,)), (Masked(), (14,)), (Together(), (9, 4)), (Looped(), (9, 4))],
    ids=["split", "masked", "together", "loop"],
)
@pytest.mark.parametrize("family", PACKED)
def test_texts_are_those_of_plain_decoding(
    family: str, way: Way, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(way, Looped) and not ATTEND.ready:
        pytest.skip("the loop is not compiled in this run: LADE_COMPILED=1 compiles it")
    monkeypatch.setattr(model, "ways_of", lambda *args: Ways((way, Masked(), Together()), timed=False))
    network, given = tiny_model(BY_NAME[family], "sdpa"), {"do_sample": False, "max_new_tokens": 12}
    config = lade.LookaheadConfig(mode="lookahead", ngram=4, window=4, guesses=4)
    expected = network.generate(**words(*lengths), **given)
    assert torch.equal(lade.generate(network, **words(*lengths), **given, config=config), expected)
    stats = lade.last_stats()
    assert stats is not None
    assert stats.fallback is None
    assert stats.attention[way.name] > 0


@pytest.mark.parametrize("family", BATCHES)
def test_texts_of_split_prefixes_in_a_batch(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test_texts_are_those_of_plain_decoding(family, SPLIT, (9, 4), monkeypatch)


# Choosing


def ways(*names: str) -> list[Way]:
    return [SimpleNamespace(name=name, fits=lambda call: True) for name in names]  # type: ignore[misc]


def chosen(seconds: dict[str, float]) -> tuple[str | None, list[str]]:
    """The way that is chosen where each takes so long, and which ones were tried."""
    found, tried = Choice(ways(*seconds)), list[str]()
    while found.best is None:
        way = found.next()
        tried.append(way.name)
        found.note(way, seconds[way.name])
    return found.best.name, tried


def test_ways_are_timed_in_turn_and_the_fastest_stays() -> None:
    best, tried = chosen({"rule": 1.0, "slow": 2.0, "fast": 0.9})
    assert best == "fast"
    assert tried == ["rule", "slow", "fast"] * choice.SAMPLES
    assert chosen({"rule": 1.0})[1] == []


def test_few_samples_suffice_where_one_way_is_clearly_faster() -> None:
    assert chosen({"rule": 1.0, "slow": 2.0, "fast": 0.79}) == ("fast", ["rule", "slow", "fast"] * choice.FEWEST)
    assert chosen({"rule": 1.0, "slow": 2.0, "other": 1.3}) == ("rule", ["rule", "slow", "other"] * choice.FEWEST)
    assert len(chosen({"rule": 1.0, "fast": 0.81})[1]) == 2 * choice.SAMPLES


def test_one_disturbed_sample_does_not_decide() -> None:
    found, seconds = Choice(ways("rule", "other")), iter([1.0, 0.5, 1.0, 0.9])
    for _ in range(4):
        found.note(found.next(), next(seconds))
    assert found.best is None


def test_a_try_is_known_afterwards() -> None:
    found, before = Choice(ways("rule", "other"), samples=1), choice.tried()
    assert choice.tried() == before
    found.next()
    assert choice.tried() != before


class Event:
    """Of a device that has done nothing yet."""

    def __init__(self, milliseconds: float = 0.0) -> None:
        self.milliseconds, self.passed = milliseconds, False

    def query(self) -> bool:
        return self.passed

    def elapsed_time(self, end: "Event") -> float:
        return end.milliseconds - self.milliseconds


def test_times_of_a_device_are_read_when_it_is_there() -> None:
    """Until then ways are taken in turn, and nothing waits."""
    found, tried, ends = Choice(ways("rule", "fast"), samples=2), list[str](), list[Event]()
    for _ in range(6):
        way = found.next()
        tried.append(way.name)
        ends.append(Event(2.0 if way.name == "rule" else 1.0))
        found.expect(way, Event(), ends[-1])
    assert tried == ["rule", "fast"] * 3
    assert found.best is None
    for event in ends:
        event.passed = True
    found.expect(found.next(), Event(), Event())
    assert found.best is not None
    assert found.best.name == "fast"


def test_the_rule_stays_where_nothing_is_gained() -> None:
    assert chosen({"rule": 1.0, "other": 0.99})[0] == "rule"


def test_a_choice_is_shared_by_calls_of_about_one_shape() -> None:
    generator = torch.Generator().manual_seed(0)

    def choice_of(prefix: int, nodes: int, usual: Ways) -> Choice:
        return choice_for(usual, call_of([Row(0, prefix, nodes, generator)], 2, 2, generator))

    usual: Any = Ways((Masked(), SPLIT))
    assert choice_of(40, 4, usual) is choice_of(50, 5, usual)
    assert choice_of(40, 4, usual) is not choice_of(80, 4, usual)
    assert choice_of(40, 4, usual) is not choice_of(40, 8, usual)
    assert choice_of(40, 4, Ways((SPLIT, Masked()), timed=False)).best is SPLIT
