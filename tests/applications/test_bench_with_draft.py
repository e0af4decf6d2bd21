"""Methods with a draft model, on the model that ships and the same without its last layers: texts, counts, refusals."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from benchtools import PROMPTS, asked, made, noted
from click.testing import CliRunner, Result
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import lade
from lade.applications.bench.command import command
from lade.applications.bench.companion import Companion
from lade.applications.bench.contenders import Contender
from lade.applications.bench.memory import MemoryJob, run_job
from lade.applications.bench.methods import METHODS, MethodOptions
from lade.applications.bench.records import Record, read_records
from lade.applications.bench.runner import run_trials
from lade.applications.bench.task import RunOptions, make_task
from lade.applications.bench.text_likelihood import log_likelihood
from lade.applications.bench.timings import Timings
from lade.applications.bench.trial import trials_of
from lade.applications.bench.with_draft import layers_of
from lade.models.load import load
from lade.models.shipped import FOLDER, STORIES
from lade.target.skipset import SkipSet, write_skip_set

pytestmark = pytest.mark.usefixtures("one_thread")

LOSSLESS = "draft:draft_tokens=3,draft:draft_adapt=acceptance,multi_candidate:widths=2-2,assisted,self_speculative"
OPTIONS = RunOptions(max_new_tokens=16, eos=(1, 2))  # the first call of a model probes it, so one comes before


@pytest.fixture(scope="module")
def pair() -> Companion:
    """The model that ships, three of its five layers as the draft."""
    tokenizer = load(STORIES)[1]
    return Companion(shortened(), tokenizer, tokenizer)


def shortened() -> PreTrainedModel:
    model = load(STORIES)[0]
    model.model.layers = model.model.layers[:3]
    model.config.num_hidden_layers = 3
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, pair: Companion) -> Path:
    path = tmp_path_factory.mktemp("draft")
    pair.model.save_pretrained(path)
    pair.tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory, pair: Companion) -> Path:
    """A draft whose tokenizer has one token more."""
    path = tmp_path_factory.mktemp("stranger")
    pair.model.save_pretrained(path)
    more().save_pretrained(path)
    return path


def more() -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / STORIES)
    tokenizer.add_tokens(["<more>"])
    return tokenizer


def beside(pair: Companion, specs: str, **options: Any) -> list[Contender]:
    return [contender.beside(pair) for contender in asked(specs, draft="somewhere", **options)]


def run(
    pair: Companion, contenders: list[Contender], options: RunOptions = OPTIONS, likely: bool = False
) -> list[Record]:
    model = load(STORIES)[0]
    task = make_task("stories", PROMPTS[:2], model, pair.target_tokenizer, options)
    trials = trials_of(task, options)
    found = run_trials(model, contenders, trials, Timings(), model if likely else None)
    return [record for records in found for record in records]


# Texts and counts


def test_lossless_methods_give_plain_decoding_s_text_in_fewer_steps(pair: Companion) -> None:
    records = run(pair, beside(pair, LOSSLESS, skip="4/3-4"))
    others = [record for record in records if record.method != "plain"]
    assert len(others) == 2 * 5
    for record in others:
        assert (record.identical_to_plain, record.fallback, record.compared_with) == (True, None, "plain")
        assert record.steps < record.new_tokens - 1, record.method
        assert sum(record.widths.values()) == record.steps
        assert set(record.accepted) == {"assistant" if record.method == "assisted" else "draft"}
        assert 0 < sum(record.accepted.values()) <= sum(record.verified.values())


def test_what_the_model_drafts_for_itself_is_no_step(pair: Companion) -> None:
    """Counted from outside as it counts itself, though its drafts run through the same model."""
    seen: list[lade.GenerationStats] = []
    plain, own = beside(pair, "self_speculative", skip="4/3-4")

    def decode(model: PreTrainedModel, **arguments: Any) -> Tensor:
        text = own.decode(model, **arguments)
        stats = lade.last_stats()
        assert stats
        seen.append(stats)
        return text

    records = [record for record in run(pair, [plain, made(decode, "own", has_stats=True)]) if record.method == "own"]
    assert [(record.steps, record.widths) for record in records] == [
        (stats.steps, stats.widths) for stats in seen[-2:]
    ]  # behind the warm-up
    assert all(record.draft_seconds > 0 for record in records)


def test_contrastive_decoding_is_compared_with_itself(pair: Companion) -> None:
    records = run(pair, beside(pair, "contrastive_auto,contrastive_lookahead"), likely=True)
    texts = {(record.method, record.prompt_id): record for record in records}
    for name in (0, 1):
        alone = texts["contrastive", name]
        assert alone.digest != texts["plain", name].digest
        assert (alone.compared_with, alone.identical_to_plain, alone.steps) == ("contrastive", True, 15)
        assert (texts["plain", name].log_likelihood or 0) > (alone.log_likelihood or 0)
        for method in ("contrastive_auto", "contrastive_lookahead"):
            record = texts[method, name]
            assert (record.compared_with, record.identical_to_plain, record.parting) == ("contrastive", True, None)
            assert record.digest == alone.digest


def test_a_text_that_leaves_what_it_is_compared_with_is_seen_and_not_audited(pair: Companion) -> None:
    (_, alone), other = beside(pair, "contrastive"), noted([], ["other"])[0]
    strayed = Contender("other", other.decode, other.method, counterpart=alone)
    records = run(pair, [*beside(pair, "contrastive"), strayed])
    assert {record.identical_to_plain for record in records if record.method == "other"} == {False}
    assert all(record.parting is None for record in records)


def test_records_hold_the_measures_of_their_texts(pair: Companion) -> None:
    records = run(pair, beside(pair, "draft"), likely=True)
    for record in records:
        assert 0 < record.text_measures["distinct-1"] <= 1
        assert record.text_measures["entropy-2"] > 0
        assert record.log_likelihood is not None
        assert record.log_likelihood < 0
    model, tokenizer = load(STORIES)
    ids = tokenizer(PROMPTS[0].text).input_ids
    text = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False, eos_token_id=[1, 2])[0, len(ids) :]
    assert records[0].log_likelihood == pytest.approx(
        lade.measure.likelihood.mean_log_likelihood(model, torch.tensor(ids), text)
    )


def test_a_text_beyond_the_reference_model_has_no_likelihood() -> None:
    model = load(STORIES)[0]
    assert log_likelihood(model, [1, 5], []) is None
    assert log_likelihood(model, [1, 5], [model.config.vocab_size]) is None
    assert (log_likelihood(model, [1, 5], [7, 9]) or 0) < 0


def test_an_assistant_with_another_tokenizer_assists(pair: Companion) -> None:
    strange = Companion(deepcopy(pair.model), more(), pair.target_tokenizer)
    strange.model.resize_token_embeddings(513)
    for options in (OPTIONS, RunOptions(max_new_tokens=12, temperature=1.0, eos=(1, 2))):
        records = run(strange, beside(strange, "assisted:draft_tokens=3"), options)
        assert all(record.identical_to_plain for record in records if options.temperature == 0)
    assert strange.model.get_output_embeddings().weight.shape[0] == 513  # a copy was cut


# Refusals


def test_other_tokenizers_are_refused(pair: Companion) -> None:
    model = load(STORIES)[0]
    strange = Companion(pair.model, more(), pair.target_tokenizer)
    strangers = beside(strange, "draft,multi_candidate,contrastive,assisted")[1:]
    for contender in strangers:
        reason = contender.refusal(model, 1)
        assert reason == (
            "the draft model has another tokenizer: of its 513 tokens and the model's 512 only 512 are the same"
        )
    assisted = beside(pair, "assisted")[1]
    assert assisted.refusal(model, 1) is None
    assert assisted.refusal(model, 2) == "decodes one prompt at a time, not a batch of 2"
    assert beside(pair, "draft")[1].refusal(model, 2) is None


def test_a_companion_is_copied_once(pair: Companion) -> None:
    assert pair.copied() is pair.copied() is not pair.model


def test_what_two_models_or_one_cannot_do_is_told(pair: Companion) -> None:
    model = load(STORIES)[0]
    assert "layers.attention must be layers from 0 to " in str(
        beside(pair, "self_speculative:skip=9/")[1].refusal(model, 1)
    )
    assert "alpha must be a number from 0 to 1, got 2.0" in str(
        beside(pair, "contrastive:contrast_alpha=2")[1].refusal(model, 1)
    )
    assert "contrast.vocabulary must be at most" in str(
        beside(pair, "contrastive", vocabulary=600)[1].refusal(model, 1)
    )


def test_layers_are_read_from_the_option_or_a_file(tmp_path: Path) -> None:
    assert layers_of("1-2/") == SkipSet((1, 2), ())
    assert layers_of("/0") == SkipSet((), (0,))
    write_skip_set(tmp_path / "set.json", SkipSet((3,), (1, 2)), {})
    assert layers_of(str(tmp_path / "set.json")) == SkipSet((3,), (1, 2))
    with pytest.raises(OSError, match="absent"):
        layers_of("absent.json")


# The command


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "stories.jsonl"
    path.write_text('{"prompt": "Once upon a time, there was"}\n')
    return path


def bench(prompts: Path, out: Path, *arguments: object) -> Result:
    given = (STORIES, "--threads", 1, "--prompts", prompts, "--out", out, "--max-new-tokens", 12, *arguments)
    return CliRunner().invoke(command, [str(argument) for argument in given])


@pytest.mark.usefixtures("undrawn")
def test_one_command_compares_every_method(prompts: Path, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = bench(prompts, out, "--draft", folder, "--skip", "4/4", "--methods", "all,multi_candidate:widths=2-1")
    assert result.exit_code == 0, result.output
    records = read_records(out / "results.jsonl")
    assert [record.method for record in records] == [
        *(name for name in METHODS if name not in ("static", "wrong")), "multi_candidate:widths=2-1",
    ]  # fmt: skip
    assert all(record.identical_to_plain and record.fallback is None for record in records)
    summary = json.loads((out / "summary.json").read_text())
    rows = {row["method"]: row for row in summary["table"]}
    assert rows["draft"]["acceptance_rate"]["median"] > 0
    assert rows["multi_candidate"]["block_efficiency"]["median"] > 1
    assert rows["plain"]["acceptance_rate"] is None
    assert rows["contrastive_auto"]["compared_with"] == "contrastive"
    assert rows["plain"]["log_likelihood"] < 0 < rows["plain"]["text_measures"]["entropy-1"]
    assert summary["draft"] not in (None, summary["fingerprint"])
    assert summary["reference_model"] is None  # the model itself
    markdown = (out / "report.md").read_text()
    for words in ("contrastive_auto (over contrastive)", "### Acceptance rate", "### Texts", "| draft | 1"):
        assert words in markdown


@pytest.mark.usefixtures("undrawn")
def test_a_reference_model_of_its_own_is_asked(prompts: Path, folder: Path, tmp_path: Path) -> None:
    likely = []
    for place, more in enumerate(([], ["--reference-model", folder])):
        result = bench(prompts, tmp_path / f"{place}", "--methods", "plain", *more)
        assert result.exit_code == 0, result.output
        likely.append(read_records(tmp_path / f"{place}" / "results.jsonl")[0].log_likelihood)
    assert likely[0] != likely[1]
    asked_of = json.loads((tmp_path / "1" / "run.json").read_text())
    assert asked_of["reference_model"] not in (None, asked_of["fingerprint"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "draft"), "method 'draft' needs the option draft"),
        (("--draft-quant", "nf4"), "--draft-quant must be given with --draft, got nf4 alone"),
        (("--draft", "DRAFT"), "--draft must be given with a method that uses it (draft, multi_candidate, assisted"),
        (("--draft", "nowhere/at/all", "--methods", "draft"), "'nowhere/at/all'"),
        (("--reference-model", "nowhere/at/all"), "'nowhere/at/all'"),
        (("--quant", "int4"), "quant must be one of nf4, int8, torchao-int8, or None on device='cpu', got 'int4'"),
        (("--draft", "DRAFT", "--draft-quant", "int4", "--methods", "draft"), "None on device='cpu', got 'int4'"),
        (("--draft", "STRANGER", "--methods", "draft"), "method 'draft': the draft model has another tokenizer"),
        (("--draft", "STRANGER", "--methods", "contrastive_auto"), "method 'contrastive_auto': the draft model has"),
        (("--reference-model", "STRANGER"), "--reference-model must have MODEL's tokenizer, got "),
        (("--draft", "DRAFT", "--methods", "assisted", "--batch", "2"), "method 'assisted': decodes one prompt"),
        (
            ("--methods", "self_speculative", "--skip", "7/"),
            "method 'self_speculative': layers.attention must be layers from 0 to 4, got (7,)",
        ),
        (("--methods", "self_speculative", "--skip", "absent.json"), "absent.json"),
        (("--methods", "self_speculative", "--skip", "BINARY"), "weights: is not JSON"),
    ],
)
def test_what_cannot_run_is_refused_before_the_first_run(
    prompts: Path, folder: Path, stranger: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    places = {"DRAFT": folder, "STRANGER": stranger, "BINARY": tmp_path / "weights"}
    places["BINARY"].write_bytes(b"\xff\xfe\x00")
    out = tmp_path / "out"
    result = bench(prompts, out, *(places.get(argument, argument) for argument in arguments))
    assert result.exit_code == 2
    assert message in result.stderr
    assert not out.exists() or not any(out.iterdir())


def test_memory_is_measured_beside_a_draft_model(folder: Path) -> None:
    options = vars(MethodOptions(draft=str(folder)))
    loading = {"dtype": None, "device": None, "attn_implementation": None, "quant": None}
    found = run_job(
        MemoryJob(STORIES, "draft", options, context=16, max_new_tokens=4, threads=1, seed=0, loading=loading)
    )
    assert (found.new_tokens, found.fallback, found.refusal) == (4, None, None)
    assert found.seconds > 0
    assert 0 < found.loaded <= found.peak
