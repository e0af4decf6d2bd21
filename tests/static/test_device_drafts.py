"""Calls of `generate` whose drafts the device makes: the text of plain decoding, and the same counts as other steps."""

import dataclasses
from typing import Any

import pytest
import torch
from families import BY_NAME
from sidebyside import sequences
from tiny import own_llama, tiny_model, words
from transformers import DynamicCache

import lade
from lade.static import shelf
from lade.static.choices import NoiseRing
from lade.static.rounds import drafts
from lade.static.rounds.step import TREE
from lade.static.step import NOT_A_NUMBER

CONFIG = lade.LookaheadConfig(static=True, device_drafts=True, adapt=False, budget=12)
NEW = 24
FOUR = (9, 21, 4, 13)


def model_of(name: str) -> Any:
    return tiny_model(BY_NAME[name], "sdpa", torch.float64)


def compared(model: Any, config: lade.LookaheadConfig = CONFIG, **kwargs: Any) -> lade.GenerationStats:
    """The statistics of a call that has the text of plain decoding."""
    kwargs = {"max_new_tokens": NEW, "do_sample": False, **kwargs}
    plain = model.generate(**kwargs)
    assert torch.equal(lade.generate(model, config=config, **kwargs), plain)
    stats = lade.last_stats()
    assert stats is not None
    return stats


@pytest.mark.parametrize(
    ("name", "lengths"), [("llama", (9,)), ("llama", FOUR), ("gemma3", FOUR), ("gpt2", (9,))], ids=str
)
def test_texts_of_plain_decoding(name: str, lengths: tuple[int, ...]) -> None:
    stats = compared(model_of(name), **words(*lengths))
    assert set(stats.proposed) == {"device"}
    assert set(stats.attention) == {"static"}
    assert sum(stats.accepted.values()) + stats.steps + len(lengths) == stats.new_tokens
    assert stats.steps < stats.new_tokens - 4 * len(lengths)


def test_texts_that_end_early() -> None:
    model = model_of("llama")
    text = model.generate(**words(9, 4), do_sample=False, max_new_tokens=NEW)
    ends = [int(text[0, -4]), int(text[1, -9])]
    stats = compared(model, **words(9, 4), eos_token_id=ends, pad_token_id=0)
    assert set(stats.proposed) == {"device"}


@pytest.mark.parametrize(
    "asked",
    [
        {"repetition_penalty": 1.2},
        {"do_sample": True, "repetition_penalty": 1.2},
        {"do_sample": True, "eta_cutoff": 0.01},
        {"max_time": 1000.0},
        {"return_dict_in_generate": True, "output_scores": True},
    ],
    ids=(
        "a processor that reads the text",
        "the same, sampled",
        "one that checks scores",
        "a stopping criterion",
        "scores",
    ),
)
def test_what_the_device_cannot_tell_is_drafted_by_the_host(asked: dict[str, Any]) -> None:
    model = model_of("llama")
    torch.manual_seed(3)
    plain = model.generate(**words(9), max_new_tokens=NEW, **asked)
    torch.manual_seed(3)
    ours = lade.generate(model, **words(9), max_new_tokens=NEW, config=CONFIG, **asked)
    assert sequences(ours) == sequences(plain)
    assert "device" not in lade.last_stats().proposed


SAMPLED = [
    {"temperature": 0.3},
    {"temperature": 0.5, "top_k": 20},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 0},
    {"temperature": 1.0, "top_k": 0, "min_p": 0.05},
    {"temperature": 0.4, "typical_p": 0.8, "epsilon_cutoff": 0.001, "suppress_tokens": [7, 9]},
]


@pytest.mark.parametrize(
    ("asked", "lengths", "adapt"),
    [
        *((asked, FOUR, False) for asked in SAMPLED),
        (SAMPLED[1], (9,), False),
        (SAMPLED[2], (9,), True),
        (SAMPLED[4], FOUR, True),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_samples_of_plain_decoding(asked: dict[str, Any], lengths: tuple[int, ...], adapt: bool) -> None:
    """The text, and the generator afterwards; host and device may draft in turns."""
    model, config = model_of("llama"), dataclasses.replace(CONFIG, adapt=adapt)
    kwargs = {**words(*lengths), "do_sample": True, "max_new_tokens": 36, **asked}
    torch.manual_seed(5)
    plain, behind = model.generate(**kwargs), torch.rand(4)
    torch.manual_seed(5)
    assert torch.equal(lade.generate(model, config=config, **kwargs), plain)
    assert torch.equal(torch.rand(4), behind)
    stats = lade.last_stats()
    assert "device" in stats.proposed
    assert adapt or set(stats.proposed) == {"device"}


def test_little_noise_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    fill, kept = NoiseRing.fill, list[int]()

    def noting(ring: Any, noise: Any, *row: int) -> None:
        fill(ring, noise, *row)
        kept.append(len(noise._drawn))

    monkeypatch.setattr(NoiseRing, "fill", noting)
    lade.generate(model_of("llama"), **words(9), do_sample=True, max_new_tokens=90, config=CONFIG)
    assert len(kept) > 2
    assert max(kept) <= drafts.ROUNDS * (drafts.DEPTH + 1)


def test_samples_that_end_early() -> None:
    model, kwargs = model_of("llama"), {**words(9, 4), "do_sample": True, "temperature": 0.5, "max_new_tokens": NEW}
    torch.manual_seed(3)
    text = model.generate(**kwargs)[:, -NEW:].tolist()
    kwargs |= {"eos_token_id": max(text[0], key=text[0].index), "pad_token_id": 0}  # the last one to come up
    torch.manual_seed(3)
    plain, behind = model.generate(**kwargs), torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(lade.generate(model, config=CONFIG, **kwargs), plain)
    assert torch.equal(torch.rand(4), behind)
    assert set(lade.last_stats().proposed) == {"device"}
    assert kwargs["eos_token_id"] in plain[0, :-1]


def test_processors_without_sampling() -> None:
    model = model_of("llama")
    whole = model.generate(**words(9), do_sample=False, max_new_tokens=NEW)[0, 9:].tolist()
    stats = compared(model, **words(9), suppress_tokens=whole[::3])
    assert set(stats.proposed) == {"device"}


def test_calls_of_other_processors_share_no_loop() -> None:
    """But those with equal ones do, and all share one ring of noise."""
    model = own_llama().double()
    for top_k, kept in ((2, 1), (20, 2), (2, 2)):
        kwargs = {**words(9), "do_sample": True, "top_k": top_k, "max_new_tokens": NEW}
        torch.manual_seed(3)
        plain = model.generate(**kwargs)
        torch.manual_seed(3)
        ours = lade.generate(model, **kwargs, config=CONFIG)
        assert torch.equal(ours, plain)
        loops = shelf._kept[model].graphs.loops.values()
        assert len(loops) == kept
        assert len({id(loop.step.chooser.ring) for loop in loops}) == 1


def test_no_distribution_is_plain_decoding_s_error(monkeypatch: pytest.MonkeyPatch) -> None:
    run = drafts.DeviceLoop.run

    def without(loop: Any, places: Any, rounds: int) -> Any:
        found = run(loop, places, rounds).copy()
        found[1, 0, 0, TREE] = -1
        return found

    monkeypatch.setattr(drafts.DeviceLoop, "run", without)
    with pytest.raises(RuntimeError, match="probability tensor contains"):
        lade.generate(model_of("llama"), **words(9), do_sample=True, max_new_tokens=NEW, config=CONFIG)


def test_the_cache_is_that_of_plain_decoding() -> None:
    model, ours, plain = model_of("llama"), DynamicCache(), DynamicCache()
    kwargs = {**words(9), "do_sample": False, "max_new_tokens": NEW}
    text = model.generate(**kwargs, past_key_values=plain)
    assert torch.equal(lade.generate(model, **kwargs, past_key_values=ours, config=CONFIG), text)
    assert "device" in lade.last_stats().proposed
    for one, other in zip(ours.layers, plain.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys)
        torch.testing.assert_close(one.values, other.values)


@pytest.mark.parametrize("new", [23, 24, 25])
def test_the_last_positions_of_a_model(new: int) -> None:
    """gpt2 has a learned embedding for each; the text may end before, at, or behind the last one."""
    config = BY_NAME["gpt2"].config | {"n_positions": 40}
    model = tiny_model(dataclasses.replace(BY_NAME["gpt2"], config=config), "sdpa", torch.float64)
    prompt = words(40 - 24)
    lade.generate(model, **prompt, do_sample=False, max_new_tokens=4, config=CONFIG)
    asked = {**prompt, "do_sample": False, "max_new_tokens": new}
    try:
        plain = model.generate(**asked)
    except IndexError:
        with pytest.raises(IndexError):
            lade.generate(model, **asked, config=CONFIG)
        return
    assert torch.equal(lade.generate(model, **asked, config=CONFIG), plain)
    assert set(lade.last_stats().proposed) == {"device"}


def test_few_loops_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = own_llama().double()
    monkeypatch.setattr(drafts, "MOST_LOOPS", 2)
    for token in (7, 8, 7, 9):
        compared(model, **words(9), suppress_tokens=[token])
    kinds = list(shelf._kept[model].graphs.loops)
    assert ["[7]" in str(kind) for kind in kinds] == [True, False], "the latest used"


def test_slots_grow() -> None:
    stats = compared(model_of("llama"), **words(200), max_new_tokens=80)
    assert set(stats.proposed) == {"device"}


def test_nothing_of_an_earlier_call_is_known() -> None:
    """Graphs outlive calls, and with them the tables."""
    model = own_llama().double()
    shelf._kept.pop(model, None)
    first = compared(model, **words(9))
    compared(model, **words(13))
    assert compared(model, **words(9)).steps == first.steps
    (loop,) = shelf._kept[model].graphs.loops.values()
    assert loop.step.model is None, "what outlives a call holds the model"


def test_after_a_nan_the_host_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    run = drafts.DeviceLoop.run

    def with_nan(loop: Any, places: Any, rounds: int) -> Any:
        found = run(loop, places, rounds).copy()
        if places[0].left < 60:  # the device has drafted
            found[1:, 0, 0, TREE + 1] = NOT_A_NUMBER
        return found

    cleared, discard = list[int](), drafts.StaticTarget.discard

    def noting(target: Any, slots: Any) -> None:
        cleared.extend(slots)
        discard(target, slots)

    monkeypatch.setattr(drafts.DeviceLoop, "run", with_nan)
    monkeypatch.setattr(drafts.StaticTarget, "discard", noting)
    stats = compared(model_of("llama"), **words(9, 5), max_new_tokens=80)
    assert stats.proposed.keys() > {"device"}
    assert cleared == [0, 1], "a masked NaN spreads"


def test_what_the_device_has_accepted_is_not_taken_for_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    following, found = drafts.DeviceDrafts.next, list[int]()

    def noting(device: Any, requests: Any) -> Any:
        step = following(device, requests)
        assert step is not None
        found.extend(step[1].nan_rows(range(len(requests))))
        return step

    monkeypatch.setattr(drafts.DeviceDrafts, "next", noting)
    compared(model_of("llama"), **words(9, 5))
    assert found == []


def test_measured_time_decides_where_both_may_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()

    class Alternating:
        def next(self) -> bool:
            asked.append(0)
            return len(asked) % 2 == 0

        def begin(self) -> None:
            asked[-1] += 1

        def end(self, tokens: float, counts: bool) -> None:
            assert tokens >= 1

    monkeypatch.setattr("lade.engine.rounds.Turns", Alternating)
    config = lade.LookaheadConfig(static=True, device_drafts=True, budget=12)
    stats = compared(model_of("llama"), config, **words(9, 5), max_new_tokens=60)
    assert stats.proposed.keys() > {"device"}
    assert len(asked) > 2


def test_a_device_that_cannot_draft_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def fail(loop: Any) -> None:
        raise RuntimeError("not capturable")

    monkeypatch.setattr(drafts.DeviceLoop, "prepare", fail)
    stats = compared(own_llama().double(), **words(9))
    assert "device" not in stats.proposed
    assert [record.message for record in caplog.records if record.name == drafts.__name__] == [
        "lade: the device does not draft: RuntimeError: not capturable"
    ]


def test_the_host_learns_what_the_device_taught() -> None:
    """Steps of the host behind those of the device find their predictions."""
    model, config = model_of("llama"), lade.LookaheadConfig(
        static=True, device_drafts=True, adapt=False, budget=12, tenant="device", sources=("recycled",)
    )  # fmt: skip
    cold = lade.LookaheadConfig(adapt=False, budget=12, tenant="host", sources=("recycled",))
    warm = lade.LookaheadConfig(adapt=False, budget=12, tenant="device", sources=("recycled",))
    try:
        compared(model, config, **words(9))
        assert compared(model, warm, **words(9)).steps < compared(model, cold, **words(9)).steps
    finally:
        lade.drop_pools(model)
