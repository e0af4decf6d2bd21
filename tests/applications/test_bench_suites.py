"""The suites: what ships is whole and says where it is from, what does not ship says how to have it."""

import gzip
import hashlib
import json
import re
import tomllib
from pathlib import Path

import pytest
from stories import local

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.suites import SUITES, SuiteError
from lade.applications.bench.suites.sources import SHIPPED, AbsentError, DataRow, Local, load, read_rows

ROOT = Path(__file__).parents[2]
SIZES = {
    "mt_bench": 80,
    "vicuna_bench": 80,
    "human_eval": 164,
    "gsm8k": 1319,
    "mbpp": 500,
    "class_eval": 100,
    "self_instruct": 252,
    "stories": 24,
}
ABSENT = ("spec_bench", "wmt_ende", "xsum", "cnn_dm")
FOLDERS = sorted(SHIPPED.iterdir())
SUM = re.compile(r"^([0-9a-f]{64})  (\S+)$", re.MULTILINE)


# What ships


def test_every_suite_is_there_by_its_name() -> None:
    assert set(SUITES) == {*SIZES, *ABSENT}
    assert all(name == suite.name for name, suite in SUITES.items())
    assert {name for name, suite in SUITES.items() if suite.score} == {"gsm8k", "human_eval", "mbpp"}
    assert {name for name, suite in SUITES.items() if suite.executes} == {"human_eval", "mbpp"}


@pytest.mark.parametrize("name", SIZES)
def test_shipped_prompts(name: str) -> None:
    prompts = SUITES[name].load()
    assert len(prompts) == len({prompt.id for prompt in prompts}) == SIZES[name]
    assert all(turn.strip() for prompt in prompts for turn in prompt.turns)
    assert {len(prompt.turns) for prompt in prompts} == ({2} if name == "mt_bench" else {1})
    assert all((prompt.answer is not None) == (SUITES[name].score is not None) for prompt in prompts)
    assert all(bool(prompt.category) == (name in ("mt_bench", "vicuna_bench")) for prompt in prompts)


def test_every_shipped_folder_has_a_suite() -> None:
    assert [folder.name for folder in FOLDERS] == sorted(SIZES)
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*")) < 1_500_000


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_shipped_files_are_what_their_source_says(folder: Path) -> None:
    source = (folder / "SOURCE.txt").read_text(encoding="utf-8")
    assert {"data", "licence"} <= set(re.findall(r"^(\w+): ", source, re.MULTILINE))
    assert re.search(r"^repository: https://.*^commit: [0-9a-f]{40}.*^changed: |^origin: ", source, re.M | re.S)
    named = {name: digest for digest, name in SUM.findall(source)}
    assert set(named) == {path.name for path in folder.iterdir()} - {"SOURCE.txt"}
    assert "LICENSE" in named
    for name, digest in named.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_compressed_text_is_what_its_source_says(folder: Path) -> None:
    source = (folder / "SOURCE.txt").read_text(encoding="utf-8")
    inside = re.findall(r"^  ([0-9a-f]{64})$", source, re.MULTILINE)
    assert bool(inside) == ("compressed" in source)
    if inside:
        (path,) = folder.glob("*.gz")
        assert [hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()] == inside


def test_what_ships_is_packaged() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["lade.applications.bench.suites"]
    found = {path for pattern in patterns for path in SHIPPED.parent.glob(pattern)}
    assert {path for path in SHIPPED.rglob("*") if path.is_file()} <= found
    licences = {path for pattern in settings["project"]["license-files"] for path in ROOT.glob(pattern)}
    assert {ROOT / "applications/bench/suites/data" / folder.name / "LICENSE" for folder in FOLDERS} <= licences


# Forms


def text(suite: str, prompt_id: str | int) -> str:
    return next(prompt for prompt in SUITES[suite].load() if prompt.id == prompt_id).text


def test_forms() -> None:
    assert text("human_eval", "HumanEval/2").startswith("\n\ndef truncate_number(number: float) -> float:\n")
    assert text("human_eval", "HumanEval/2").endswith('    0.5\n    """\n')
    assert re.fullmatch(r"Question: A robe takes 2 bolts .* does it take\?\nAnswer:", text("gsm8k", 1))
    assert text("mbpp", 11) == (
        '"""\nWrite a python function to remove first and last occurrence of a given character from the string.\n'
        'assert remove_Occ("hello","l") == "heo"\nassert remove_Occ("abcda","a") == "bcd"\n'
        'assert remove_Occ("PHP","P") == "H"\n"""\n'
    )
    assert text("class_eval", "ClassEval_0").startswith("import logging\nimport datetime\n\nclass AccessGatewayFilter:")
    with_input, without = text("self_instruct", "user_oriented_task_0"), text("self_instruct", "user_oriented_task_5")
    assert re.fullmatch(r"The sentence you are .* words\.\n\nIf you have .* know\.\n\nOutput:", with_input)
    assert re.fullmatch(r"If you could help me .* appreciated\.\n\nOutput:", without)


def test_answers() -> None:
    assert [prompt.answer for prompt in SUITES["gsm8k"].load()[:3]] == ["18", "3", "70000"]
    truncate = SUITES["human_eval"].load()[2].answer
    assert truncate.function == "truncate_number"
    assert "def check(candidate):" in truncate.code
    tasks = {prompt.id: prompt.answer for prompt in SUITES["mbpp"].load()}
    assert set(tasks) == set(range(11, 511))
    assert [number for number, checks in tasks.items() if checks.setup] == [367]
    assert tasks[11].code.count("assert ") == 3


# What does not ship


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of local data, and no hub."""
    monkeypatch.setenv("LADE_DATA", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "data"


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True)
    lines = [json.dumps(row, ensure_ascii=False) for row in content] if isinstance(content, list) else [str(content)]
    path.write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize("name", ABSENT)
def test_absent_prompts_say_where_they_were_looked_for(name: str, data: Path) -> None:
    with pytest.raises(SuiteError) as caught:
        SUITES[name].load()
    message = str(caught.value)
    assert message.startswith(f"{name}: no prompts: there is no {data}")
    assert "set LADE_DATA to a folder that holds data/" in message
    assert message.endswith(", or give a file of prompts with --prompts")
    assert ("HF_HUB_OFFLINE is set" in message) == ("lade-decoding[hub]" in message) == (name != "spec_bench")


def test_without_local_data_no_folder_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one beside the repository is where an installed package has none."""
    monkeypatch.delenv("LADE_DATA")
    monkeypatch.setattr("lade.applications.bench.suites.sources.__file__", str(data / "a" / "b" / "c" / "d" / "e.py"))
    with pytest.raises(SuiteError, match=r"^spec_bench: no prompts: there is no local data\. To provide them, "):
        SUITES["spec_bench"].load()


def test_local_data_of_a_user_who_does_not_exist_is_told(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LADE_DATA", "~nobody-of-this-name/data")
    with pytest.raises(SuiteError, match=r"no prompts: LADE_DATA must be a folder, got '~nobody-of-this-name"):
        SUITES["spec_bench"].load()


def test_spec_bench_has_six_parts(data: Path) -> None:
    rows = [
        {"question_id": 81, "category": "stem", "turns": ["a", "b"]},
        {"question_id": 481, "category": "rag", "turns": ["c"]},
    ]
    write(data / "spec_bench/question.jsonl", rows)
    assert SUITES["spec_bench"].load() == [Prompt(81, ("a", "b"), "mt_bench"), Prompt(481, ("c",), "rag")]
    assert next(iter(SUITES["spec_bench"].columns.values())) == "Multi-turn Conversation"


def test_prompts_of_local_files(data: Path) -> None:
    write(data / "wmt_ende/wmt_ende.json", '["Translate:\\nInput: a\\nOutput: ", "b"]')
    write(data / "xsum/validation.jsonl", [{"id": "7", "document": "Rain fell.", "summary": "Rain."}])
    write(data / "cnn_dm/validation.jsonl", [{"id": "8", "article": "Snow fell."}])
    assert SUITES["wmt_ende"].load() == [Prompt(0, ("Translate:\nInput: a\nOutput: ",)), Prompt(1, ("b",))]
    assert SUITES["xsum"].load() == [Prompt("7", ("Summarize: Rain fell.\nSummary:",))]
    assert SUITES["cnn_dm"].load() == [Prompt("8", ("Summarize: Snow fell.\nSummary:",))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": "7", "document": "a"}\n{', r"xsum: .*validation.jsonl:2: is not JSON"),
        ("[7]", r"xsum: .*validation.jsonl:1 must be an object or a text, got list"),
        ('{"id": "7", "document": "a"}\n\n{"id": "8"}', r"xsum: data/xsum/validation.jsonl: row 2 has no 'document'"),
    ],
)
def test_broken_files_are_no_absent_ones(data: Path, content: str, message: str) -> None:
    write(data / "xsum/validation.jsonl", content)
    with pytest.raises(SuiteError, match=message):
        SUITES["xsum"].load()


def test_rows_of_the_wrong_kind(data: Path) -> None:
    write(data / "spec_bench/question.jsonl", [{"question_id": 1, "category": "qa", "turns": None}])
    with pytest.raises(SuiteError, match=r"spec_bench: data/spec_bench/question.jsonl: row 1 has an unexpected form"):
        SUITES["spec_bench"].load()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(AbsentError, match=r"there is no .*prompts.jsonl"):
        read_rows(tmp_path / "prompts.jsonl")
    packed = gzip.compress(b"{}", mtime=0)
    broken = {"a.jsonl": b"\xff", "a.gz": b"no gzip", "b.gz": packed[:-9], "c.gz": packed[:10] + b"\xff" + packed[11:]}
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}: (cannot be read|is not UTF-8 text)"):
            read_rows(tmp_path / name)


def test_the_first_source_that_has_rows_is_taken(data: Path) -> None:
    def prompt(number: int, row: DataRow) -> Prompt:
        return Prompt(number, (row["prompt"],))

    write(data / "second.jsonl", ["x\u2028y"])
    write(data / "third" / "third.jsonl", ["z"])
    found = load("suite", *(Local(f"{name}.jsonl", prompt) for name in ("first", "second", "third/third")))
    assert found == [Prompt(0, ("x\u2028y",))]


def test_all_of_the_local_data() -> None:
    local("data", "spec_bench", "question.jsonl")
    prompts = SUITES["spec_bench"].load()
    categories = [prompt.category for prompt in prompts]
    assert {name: categories.count(name) for name in SUITES["spec_bench"].columns} == dict.fromkeys(
        SUITES["spec_bench"].columns, 80
    )
    local("data", "wmt_ende", "wmt_ende.json")
    assert len(SUITES["wmt_ende"].load()) == 1000
