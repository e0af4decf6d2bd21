"""Calls of `generate` whose drafts the device makes: the text of plain decoding, and the same counts as other steps."""

import dataclasses
from typing import Any

import pytest
import torch
from families import BY_NAME
from tiny import own_llama, tiny_model, words
from transformers import DynamicCache

import lade
from lade.static import shelf
from lade.static.rounds import drafts
from lade.static.rounds.step import TREE
from lade.static.step import NOT_A_NUMBER

CONFIG = lade.LookaheadConfig(static=True, device_drafts=True, adapt=False, budget=12)
NEW = 24


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


@pytest.mark.parametrize("lengths", [(9,), (9, 21, 4, 13)], ids=("alone", "four"))
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
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
    [{"repetition_penalty": 1.2}, {"do_sample": True, "temperature": 0.8}, {"max_time": 1000.0}],
    ids=("a processor", "sampled", "a stopping criterion"),
)
def test_what_is_more_than_the_likeliest_token_is_drafted_by_the_host(asked: dict[str, Any]) -> None:
    model = model_of("llama")
    torch.manual_seed(3)
    plain = model.generate(**words(9), max_new_tokens=NEW, **asked)
    torch.manual_seed(3)
    assert torch.equal(lade.generate(model, **words(9), max_new_tokens=NEW, config=CONFIG, **asked), plain)
    assert "device" not in lade.last_stats().proposed


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


def test_few_loops_are_kept() -> None:
    model = own_llama().double()
    for stop in range(drafts.MOST_LOOPS + 1):
        compared(model, **words(9), eos_token_id=60 + stop, pad_token_id=0)
    assert len(shelf._kept[model].graphs.loops) <= drafts.MOST_LOOPS


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
        def next(self, emitted: int) -> bool:
            asked.append(emitted)
            return len(asked) % 2 == 0

    monkeypatch.setattr("lade.engine.decoding.Turns", Alternating)
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
