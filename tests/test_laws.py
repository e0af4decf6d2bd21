"""The script of hostile comparisons: the same cases on every run, some of each kind, and red where lade is broken."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hostile import run
from hostile.case import KINDS, Case
from hostile.draw import drawn, kind_of
from hostile.outcome import distance
from hostile.verdict import CaseTally, CaseVerdict
from laws import main
from seeing import picture
from trained import Figures

import lade.core.noise
import lade.drafters.draft_model
import lade.engine.verification
import lade.target.cache
import lade.target.imageprefixes
import lade.target.store
from lade.applications.images import inputs
from lade.core.request import Verdict
from lade.target.budget import KVBudget


@pytest.fixture(autouse=True)
def on_its_own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache folder of the test's own, and settings of the process as they were."""
    monkeypatch.delenv("USE_LADE", raising=False)
    monkeypatch.setattr(run, "prepare", lambda: None)
    monkeypatch.setenv("LADE_CACHE", str(tmp_path / "cache"))
    lade.drop_pools()
    yield
    lade.drop_pools()


def looped(kind: str = "generate", **changes: Any) -> Case:
    """A short greedy case whose text repeats itself, so that drafts are accepted; everything is given back."""
    outputs = ("return_dict_in_generate", "output_scores", "streamer")
    given = {"text": "repeated", "lengths": (12,), "outputs": outputs, "config": {"mode": "auto", "adapt": False}}
    return Case(seed=0, index=1, kind=kind, **(given | changes))


def found(case: Case) -> list[str]:
    return run.judged_case(case).differences


def test_cases_are_the_same_on_every_run() -> None:
    cases = [str(drawn(5, index)) for index in range(100)]
    assert cases == [str(drawn(5, index)) for index in range(100)]
    assert len(set(cases)) == 100
    assert cases != [str(drawn(6, index)) for index in range(100)]


def test_kinds_do_not_change_numbers() -> None:
    threads = run.numbers(3, 4, ("threads",))
    assert all(drawn(3, index).kind == kind_of(3, index) == "threads" for index in threads)
    assert run.numbers(3, 50) == list(range(50))


@pytest.mark.parametrize("count", [1, pytest.param(6, marks=pytest.mark.real)])
@pytest.mark.parametrize("kind", KINDS)
def test_some_of_each_kind(kind: str, count: int) -> None:
    for index in run.numbers(12, count, (kind,)):
        verdict = run.judged(12, index)
        assert not verdict.differences, f"{verdict.line}\n" + "\n".join(verdict.differences)


def test_the_law_is_not_vacuous() -> None:
    verdict = run.judged_case(looped(model="stories260K", text="written", way="scope", reference="equal"))
    assert not verdict.differences
    assert verdict.native == 1
    assert verdict.accepted > verdict.tokens / 2


def gullible(draft: Any, choose: Any, emit: Any) -> Verdict:
    """The walk, but a wrong child is as good as the right one."""
    path, tokens = [0], []
    while True:
        tokens.append(choose(path[-1]))
        children = [child for (parent, _), child in draft.children.items() if parent == path[-1]]
        if emit(tokens[-1]) or not children or children[0] not in set(draft.queries):
            return Verdict(path, tokens)
        path.append(children[0])


def test_a_walk_that_takes_a_wrong_child_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not found(looped())
    monkeypatch.setattr(lade.engine.verification, "walk", gullible)
    assert any("sequences" in line for line in found(looped()))


@pytest.mark.parametrize("kind", ["generate", "conversation"])
def test_a_cache_with_zeros_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    export = lade.target.cache.TreeCache.export

    def zeroed(self: Any, stock: Any, *args: Any, **kwargs: Any) -> None:
        export(self, stock, *args, **kwargs)
        stock.layers[0].values[:, :, -1] = 0

    assert not found(looped(kind, turns=1))
    monkeypatch.setattr(lade.target.cache.TreeCache, "export", zeroed)
    assert any("cache layer 0" in line for line in found(looped(kind, turns=1)))


def test_a_generator_left_too_far_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = looped(choose={"temperature": 0.3, "top_k": 4}, model="stories260K", text="written")
    assert not found(sampled)
    monkeypatch.setattr(lade.core.noise.Noise, "rewind", lambda self, used: torch.rand(1))
    assert "the global generator ends in another state" in found(sampled)


def test_an_error_in_one_way_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise IndexError("broken")

    monkeypatch.setattr(lade.engine.verification, "walk", broken)
    assert any("IndexError" in line for line in found(looped()))
    assert any("IndexError" in line for line in found(looped("threads", attack="together")))


def crowd(**changes: Any) -> Case:
    """An engine with more requests than slots, which stays open to their ends."""
    return Case(
        seed=0, index=4, kind="engine", **({"requests": 6, "slots": 2, "chunk": 8, "method": "draft"} | changes)
    )


def test_a_crowd_is_native_and_drafts() -> None:
    verdict = run.judged_case(crowd())
    assert not verdict.differences
    assert verdict.calls == 6
    assert verdict.accepted > 10


def test_a_neighbour_that_matters_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    places = lade.target.store.LayerGroup.keep

    def mixed(self: Any, slots: Any, paths: Any) -> None:
        """Where two rows take part, the first one keeps the keys of the second one's root."""
        if len(slots) > 1:
            self._sources.append(self.slabs.offsets[slots[1]] + self.held(slots[1]))
            self._goals.append(self.slabs.offsets[slots[0]] + self.held(slots[0]))
        places(self, slots, paths)

    monkeypatch.setattr(lade.target.store.LayerGroup, "keep", mixed)
    assert any("sequences" in line for line in found(crowd(method="")))


def about_images(**changes: Any) -> Case:
    """An engine whose prompts have images; some go on with an earlier one, a few with other images in its places."""
    config = {"mode": "auto", "budget": 16, "adapt": False}
    given = {"requests": 16, "slots": 2, "chunk": 64, "config": config}
    return Case(seed=0, index=6, kind="engine", model="image:llava", **(given | changes))


def test_images_taken_for_others_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = run.judged_case(about_images())
    assert not verdict.differences
    assert verdict.accepted > 10
    monkeypatch.setattr(lade.target.imageprefixes, "_digest", lambda beside, width: 7)
    assert any("sequences" in line for line in found(about_images()))


def test_an_image_that_a_server_reads_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(seed=3, index=0, kind="serve", model="image:llava", requests=12, slots=3)
    assert not found(case)
    monkeypatch.setattr(inputs, "decoded", lambda images: [picture(9)] * len(images))
    assert any("plain decoding has" in line for line in found(case))


def test_what_an_engine_leaves_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lade.drafters.draft_model.SecondModel, "stop", lambda self, request: None)
    monkeypatch.setattr(lade.target.store.LayerGroup, "_free", lambda self: None)
    told = found(crowd())
    assert any("after close, the draft model has slots" in line for line in told)
    assert "after close, buffers are left" in told


@pytest.mark.parametrize(("memory", "some"), [(1.0, True), (9.0, False)])
def test_requests_wait_for_memory(memory: float, some: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve, reserved = KVBudget.reserve, list[bool]()

    def watched(self: KVBudget, slot: int, tokens: int) -> bool:
        reserved.append(reserve(self, slot, tokens))
        return reserved[-1]

    monkeypatch.setattr(KVBudget, "reserve", watched)
    assert not found(crowd(method="", memory=memory))
    assert sum(reserved) == 6
    assert (False in reserved) is some


def test_requests_beyond_all_memory_are_refused() -> None:
    verdict = run.judged_case(crowd(method="", memory=0.98))
    assert not verdict.differences
    assert 0 < verdict.calls < 6
    assert "must need at most kv_bytes" in verdict.reason


def test_memory_beyond_the_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def reserve(self: KVBudget, slot: int, tokens: int) -> bool:
        self._tokens[slot] = tokens
        return True

    monkeypatch.setattr(KVBudget, "reserve", reserve)
    assert "keys and values take, or reserve, more than kv_bytes" in found(crowd(method="", memory=1.0))


def test_infinite_entries_must_agree() -> None:
    one = torch.tensor([1.0, -torch.inf, torch.nan])
    assert distance(one, one.clone()) is None
    for other in ([1.0, torch.inf, torch.nan], [1.0, 0.0, torch.nan], [1.01, -torch.inf, torch.nan]):
        assert distance(one, torch.tensor(other)) is not None


def test_near_ties_are_counted() -> None:
    rare = CaseTally([CaseVerdict("generate", "", "", ties=["a tie"], tokens=10_000)])
    often = CaseTally([*rare.verdicts, CaseVerdict("generate", "", "", ties=["one", "another"], tokens=1)])
    assert not rare.too_many_ties
    assert often.too_many_ties


def test_command_says_what_differs_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(seed: int, index: int, requests: int | None) -> CaseVerdict:
        return CaseVerdict(
            "generate", f"--seed {seed} --case {index}", "llama", differences=["all"] if index == 3 else []
        )

    monkeypatch.setattr(run, "judged", judged)
    arguments = ["--count", "5", "--seed", "7", "--jobs", "1", "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["failures"] == [{"case": "--seed 7 --case 3", "differences": ["all"]}]
    assert report["kinds"]["all"]["cases"] == 5
    assert "--seed 7 --case 3" in result.stderr
    fine = CliRunner().invoke(main, ["--count", "3", "--seed", "7", "--jobs", "1"])
    assert fine.exit_code == 0
    assert "no comparison differs" in fine.stdout


def test_command_refuses_unknown_kinds() -> None:
    result = CliRunner().invoke(main, ["--kinds", "generate,miracles"])
    assert result.exit_code == 2
    assert "miracles" in result.stderr


def test_command_checks_stories_and_fails_where_one_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    def differs() -> Figures:
        raise AssertionError("row 0 leaves the plain text")

    right = Figures(tokens=9, steps=3, accepted=6)
    laws = [("one", lambda: right), ("other", differs), ("last", lambda: right)]
    monkeypatch.setattr("laws.story_laws", lambda count: laws[:count])
    monkeypatch.setattr(run, "judged", lambda *_: CaseVerdict("generate", "", "llama"))
    found = [
        CliRunner().invoke(main, ["--count", "1", "--jobs", "1", "--json", "--stories", count]) for count in "0123"
    ]
    assert [result.exit_code for result in found] == [0, 0, 1, 1]
    assert json.loads(found[3].stdout)["broken_on_stories"] == ["other"]
    assert "other: row 0 leaves the plain text" in found[3].stderr
    assert f"last: {right}" in found[3].stderr
