"""What a line of `--methods` becomes, what is left out of it, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import lade.models
from lade.applications.bench.contenders import contenders, unready
from lade.applications.bench.methods import METHODS, BenchMethod, Decode, MethodOptions, joined, paper


def labels(specs: str) -> list[str]:
    return [contender.label for contender in contenders(specs, MethodOptions())]


def test_plain_decoding_is_always_there_and_first() -> None:
    assert labels("prompt_lookup") == ["plain", "prompt_lookup"]
    assert labels("prompt_lookup, plain,lookahead,") == ["plain", "prompt_lookup", "lookahead"]


@pytest.mark.parametrize("specs", ["", " ", ","])
def test_no_method_at_all_is_refused(specs: str) -> None:
    with pytest.raises(ValueError, match=r"^methods must be names separated by commas, of plain, .*, got '"):
        labels(specs)


def test_a_row_of_the_table_is_all_that_a_method_needs() -> None:
    seen: list[MethodOptions] = []

    def factory(options: MethodOptions) -> Decode:
        def decode(model: PreTrainedModel, **arguments: Any) -> Tensor:
            raise AssertionError

        seen.append(options)
        return decode

    table = METHODS | {"new": BenchMethod("new", factory, has_stats=True)}
    made = contenders("new:window=3:pool_from_prompt=1,new", MethodOptions(window=9), table)[1:]
    assert [contender.label for contender in made] == ["new:window=3:pool_from_prompt=1", "new"]
    assert all(contender.method.has_stats and contender.named for contender in made)
    assert [(options.window, options.pool_from_prompt) for options in seen] == [(3, True), (9, False)]


def test_a_method_that_lacks_what_it_needs_is_refused() -> None:
    table = METHODS | {"new": BenchMethod("new", METHODS["plain"].factory, needs=("guesses",))}
    with pytest.raises(ValueError, match="'new' needs the option guesses"):
        contenders("new", MethodOptions(), table)
    assert contenders("new:guesses=2", MethodOptions(), table)[1].label == "new:guesses=2"


def test_kinds_of_methods_stand_for_those_that_are_ready() -> None:
    table = METHODS | {"new": BenchMethod("new", METHODS["plain"].factory, needs=("guesses",), default=True)}
    made = contenders("all,lookahead:window=3", MethodOptions(), table)
    ready = [name for name, method in METHODS.items() if not method.needs]
    assert [contender.label for contender in made] == [*ready, "lookahead:window=3"]
    assert [contender.label for contender in made if contender.named] == ["lookahead:window=3"]
    assert unready("default", MethodOptions(), table) == {"new": "needs the option guesses"}
    lacking = {name: f"needs the option {', '.join(method.needs)}" for name, method in METHODS.items() if method.needs}
    assert unready("all", MethodOptions(), table) == lacking | {"new": "needs the option guesses"}
    assert lacking["draft"] == "needs the option draft"
    assert unready("all", MethodOptions(draft="a", skip="1/1", reference="equal"), METHODS) == {}
    assert unready("lookahead", MethodOptions(), table) == unready("default", MethodOptions(guesses=2), table) == {}
    usual = [name for name, method in table.items() if method.default]
    assert labels("default") == [name for name in usual if name != "new"]
    assert [one.label for one in contenders("auto,default", MethodOptions(guesses=2), table)] == [
        "plain", "auto", *(name for name in usual if name not in ("plain", "auto")),
    ]  # fmt: skip
    assert set(usual) >= {"plain", "static", "lookahead", "auto", "prompt_lookup"}


def test_a_contender_says_why_it_cannot_run() -> None:
    model = lade.models.load("stories260K")[0]
    plain, static, lookup = contenders("static,prompt_lookup", MethodOptions())
    assert plain.refusal(model, 4) is None
    assert static.refusal(model, 4) is None
    unnamed = next(one for one in contenders("all", MethodOptions()) if one.label == "static")
    assert unnamed.refusal(model, 1) == (
        "transformers compiles its static cache on cuda and xpu only; the model is on cpu"
    )
    assert lookup.refusal(model, 1) is None
    assert lookup.refusal(model, 4) == "decodes one prompt at a time, not a batch of 4"


def test_a_corpus_is_drafted_from(tmp_path: Path) -> None:
    model, tokenizer = lade.models.load("stories260K")
    ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
    asked = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 48}
    answer = model.generate(**asked)
    lade.Corpus([answer[0]]).save(tmp_path / "own")
    lade.Corpus([[512]]).save(tmp_path / "other")
    fixed = MethodOptions(adapt=False, budget=8)
    _, without, own, other, none = contenders(
        f"auto,{','.join(f'auto:corpus={tmp_path}/{name}' for name in ('own', 'other', 'none'))}", fixed
    )
    assert own.refusal(model, 1) is None
    assert "its tokens must be below 512, the size of the vocabulary, got 512" in str(other.refusal(model, 1))
    assert "there is no such file" in str(none.refusal(model, 1))
    steps = []
    for one in (without, own):
        assert one.decode(model, **asked).equal(answer)
        steps.append(lade.last_stats().steps)
    assert steps[0] > steps[1]


def test_a_row_s_name_is_its_mode_whatever_sizes_are_given() -> None:
    sizes = {"ngram": 3, "window": 4, "guesses": 2}
    for label, configure, mode in (("lookahead", paper, "lookahead"), ("auto", joined("suffix"), "auto")):
        options = contenders(f"{label}:level=3:window=4:guesses=2", MethodOptions())[1].options
        assert options == MethodOptions(level=3, window=4, guesses=2)
        config = configure(options)
        assert (config.mode, {name: getattr(config, name) for name in sizes}) == (mode, sizes)
    assert joined("suffix")(MethodOptions()).settled() == lade.LookaheadConfig(sources=("suffix",)).settled()


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ("plain,warp", "a method must be one of plain, static, lookahead, auto, .*, got 'warp'"),
        ("all,all", "methods must be different, got 'all' twice"),
        ("lookahead,lookahead", "methods must be different, got 'lookahead' twice"),
        ("lookahead:speed=2", "an option must be one of level, window, guesses, .*, got 'speed'"),
        ("lookahead:window=wide", "window must be an integer, got 'wide'"),
        ("lookahead:window", "window must be an integer, got ''"),
        ("lookahead:window=0", "window must be .*, got 0"),
        ("lookahead:guesses=0", "guesses must be .*, got 0"),
        ("prompt_lookup:lookup_tokens=0", "lookup_tokens must be at least 1, got 0"),
        ("auto:budget=0", "budget must be .*, got 0"),
        ("suffix:budget=-1", "budget must be .*, got -1"),
        ("auto:budget=10000000", "budget must be .* at most 4096, got 10000000"),
        ("wrong:reference=equal:budget=10000000", "budget must be .* at most 4096, got 10000000"),
        ("lookahead:level=1000000", "ngram must be .* at most 256, got 1000000"),
        ("lookahead:window=2000", r"\(window \+ guesses\) \* \(ngram - 1\) must be at most 4096"),
        ("auto:reference=near", "reference must be equal or useless, got 'near'"),
        ("auto:reference", "reference must be equal or useless, got ''"),
        ("auto:warm=yes", "warm must be an integer, got 'yes'"),
        ("draft", "method 'draft' needs the option draft"),
        ("contrastive_auto", "method 'contrastive_auto' needs the option draft"),
        ("self_speculative", "method 'self_speculative' needs the option skip"),
        ("self_speculative:skip=2-1/", r"layers.attention must be a tuple of ascending layer numbers, got \(2, 1\)"),
        ("draft:draft=other", "an option must be one of .*, got 'draft'"),
    ],
)
def test_what_cannot_run_is_refused_by_name(specs: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        contenders(specs, MethodOptions())


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ("draft:draft_tokens=0", "tokens must be .*, got 0"),
        ("assisted:draft_tokens=0", "tokens must be .*, got 0"),
        ("draft:draft_adapt=often", "adapt must be one of .*, got 'often'"),
        ("draft:threshold=nan", "threshold must be a number, got 'nan'"),
        ("multi_candidate:widths=4-x", "widths must be numbers separated by -, such as 4-2-2, got '4-x'"),
        ("multi_candidate:widths=0", r"widths must be .*, got \(0,\)"),
        ("contrastive:contrast_alpha=high", "contrast_alpha must be a number, got 'high'"),
    ],
)
def test_wrong_options_of_methods_with_a_draft_model_are_refused_by_name(specs: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        contenders(specs, MethodOptions(draft="somewhere"))


def test_another_distribution_is_compared_with_its_own_one_token_decoding() -> None:
    specs = "contrastive_auto:budget=8:contrast_alpha=0.2,auto,contrastive_lookahead,contrastive"
    made = {contender.label: contender for contender in contenders(specs, MethodOptions(draft="somewhere"))}
    assert {label: contender.compared_with for label, contender in made.items()} == {
        "plain": "plain",
        "contrastive:contrast_alpha=0.2": "contrastive:contrast_alpha=0.2",
        "contrastive_auto:budget=8:contrast_alpha=0.2": "contrastive:contrast_alpha=0.2",
        "auto": "plain",
        "contrastive": "contrastive",
        "contrastive_lookahead": "contrastive",
    }
    assert made["contrastive:contrast_alpha=0.2"].options.contrast_alpha == 0.2


def test_where_what_it_is_compared_with_cannot_run_a_method_cannot() -> None:
    model = lade.models.load("stories260K")[0]
    lonely = BenchMethod("lonely", METHODS["plain"].factory, compared_with="lonely", takes_batches=False)
    table = METHODS | {"lonely": lonely, "new": BenchMethod("new", METHODS["plain"].factory, compared_with="lonely")}
    new = contenders("new", MethodOptions(), table)[-1]
    assert new.refusal(model, 1) is None
    assert new.refusal(model, 2) == "decodes one prompt at a time, not a batch of 2"


def test_only_methods_that_can_use_it_ask_for_a_table_or_a_text() -> None:
    specs = "auto:warm=1,auto:warm=0,auto,recycled:warm=1,suffix:warm=1,lookahead:warm=1,auto:reference=equal"
    made = contenders(specs, MethodOptions())
    assert [contender.warm for contender in made] == [False, True, False, False, True, False, False, False]
    assert [contender.reference for contender in made] == [None] * 7 + ["equal"]
    everywhere = contenders("auto,lookahead,auto:reference=useless", MethodOptions(warm=True, reference="equal"))
    assert [contender.warm for contender in everywhere] == [False, True, False, True]
    assert [contender.reference for contender in everywhere] == [None, "equal", None, "useless"]
