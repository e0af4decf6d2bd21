"""The corpus command on a small environment: what gets in, what stays out, and that the split never leaks."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lade.models.pretrained import corpus
from lade.models.pretrained.documents import KINDS, Document, distinct, is_held_out
from lade.models.pretrained.exercises import GSM8K, MBPP
from lade.models.pretrained.tokenizer import load_tokenizer, train_tokenizer

SECRET = "    numbers = sorted(value for value in values if value is not None)\n    return numbers[len(numbers) // 2]\n"
FUNCTION = 'def name_{n}(value):\n    """The name of number {n}, as text."""\n    return "name {n} of " + str(value)\n'


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of distributions in place of this environment and its standard library."""
    folder = tmp_path / "site-packages"
    add(folder, "good", "License-Expression: MIT", {f"module_{n}": FUNCTION.format(n=n) for n in range(60)})
    add(folder, "copy", "License: BSD", {f"module_{n}": FUNCTION.format(n=n) for n in range(60)})
    add(folder, "closed", "License: Proprietary", {"secret": FUNCTION.format(n=700)})
    add(folder, "leaky", "License: MIT", {"middle": f"import sys\n\n\ndef middle(values):\n{SECRET}" * 2})
    monkeypatch.setattr("lade.models.pretrained.installed.standard_library", lambda: EMPTY)
    return folder


EMPTY = corpus.Origin("python", "3", "PSF-2.0", ())


def add(folder: Path, name: str, licence: str, modules: dict[str, str]) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / name).mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{licence}\n")
    (info / "RECORD").write_text("".join(f"{name}/{module}.py,,\n" for module in modules))
    for module, text in modules.items():
        (folder / name / f"{module}.py").write_text(text)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for name in ("human_eval", "gsm8k", "mbpp"):
        (folder / name).mkdir(parents=True)
    task = {"prompt": "def median(values):\n", "canonical_solution": SECRET}
    with gzip.open(folder / "human_eval" / "HumanEval.jsonl.gz", "wt") as file:
        file.write(json.dumps(task) + "\n")
    question = {"question": "What is 3 plus 4?", "answer": "It is <<3+4=7>>7.\n#### 7"}
    (folder / "gsm8k" / "train.jsonl").write_text(json.dumps(question) + "\n")
    tasks = [
        {
            "task_id": n,
            "text": f"Add {n}.",
            "code": f"def add(x):\r\n\treturn x + {n}",
            "test_list": ["assert add(1) == 2"],
        }
        for n in (5, 11, 510, 511)
    ]
    (folder / "mbpp" / "mbpp.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return folder


def build(out: Path, *arguments: str) -> str:
    result = CliRunner().invoke(corpus.main, ["--out", str(out), "--vocabulary", "300", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def texts(out: Path, side: str) -> list[str]:
    tokenizer = load_tokenizer(out)
    rows = [np.load(out / f"{side}-{kind}.npy") for kind in KINDS]
    return [text for row in rows for text in tokenizer.decode(row).split("<|endoftext|>") if text]


def test_permissive_sources_get_in_once_and_evaluation_texts_do_not(
    installed: Path, data: Path, tmp_path: Path
) -> None:
    output = build(tmp_path / "out", "--site-packages", str(installed), "--data", str(data))
    assert "1 left out for one of" in output
    kept = texts(tmp_path / "out", "train") + texts(tmp_path / "out", "held_out")
    assert len(kept) == len(set(kept))
    assert FUNCTION.format(n=1) in kept
    assert not any("name_700" in text or "sorted(value" in text for text in kept)
    assert "Question: What is 3 plus 4?\nAnswer: It is 7.\n#### 7\n" in kept
    contents = json.loads((tmp_path / "out" / "corpus.json").read_text())
    listed = {row["name"]: row["licence"] for row in contents["sources"]}
    first = {"good": "MIT", "copy": "BSD"}  # the same files: whichever is found first has them
    assert listed.items() <= (first | {GSM8K: "MIT", MBPP: "CC-BY-4.0"}).items()
    assert len(listed.keys() & first.keys()) == 1


def test_mbpp_outside_its_test_split_in_two_forms(installed: Path, data: Path, tmp_path: Path) -> None:
    build(tmp_path / "out", "--site-packages", str(installed), "--data", str(data))
    kept = [text for side in corpus.SIDES for text in texts(tmp_path / "out", side) if "add(x)" in text]
    assert '"""\nAdd 5.\nassert add(1) == 2\n"""\ndef add(x):\n    return x + 5\n' in kept
    assert 'def add(x):\n    """ Add 511.\n    >>> add(1)\n    2\n    """\n    return x + 511\n' in kept
    assert len(kept) == 4


def test_what_is_absent_is_said(installed: Path, tmp_path: Path) -> None:
    output = build(tmp_path / "out", "--site-packages", str(installed))
    assert f"{GSM8K} is left out" in output
    assert f"{MBPP} is left out" in output


def test_a_data_folder_that_is_not_there_is_refused_before_anything_is_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "origins", lambda folders: pytest.fail("something was gathered"))
    (tmp_path / "empty").mkdir()
    for folder, message in (("nowhere", "does not exist"), ("empty", "must hold at least one of")):
        arguments = ["--out", str(tmp_path / "out"), "--data", str(tmp_path / folder)]
        result = CliRunner().invoke(corpus.main, arguments)
        assert result.exit_code == 2
        assert message in result.stderr
        assert folder in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_split_never_leaks(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus.split, "__defaults__", (0.3,))
    build(tmp_path / "out", "--site-packages", str(installed))
    train, held_out = texts(tmp_path / "out", "train"), texts(tmp_path / "out", "held_out")
    assert len(held_out) > 5
    assert not set(train) & set(held_out)


def test_documents_of_a_group_stay_together() -> None:
    documents = [Document(f"{n} {kind}", kind, "somewhere", f"group {n}") for n in range(200) for kind in KINDS]
    sides = corpus.split(documents, 0.2)
    groups = [{document.group for document in sides[side]} for side in corpus.SIDES]
    assert not groups[0] & groups[1]
    assert 20 < len(groups[1]) < 60  # 40 on average, deviation 6
    assert sum(map(len, sides.values())) == len(documents)


def test_equal_documents_count_once() -> None:
    same = [Document("a = 1  \nb = 2\n", "source", "x", "1"), Document("a = 1\nb = 2", "function", "y", "2")]
    assert list(distinct(same)) == same[:1]
    assert not is_held_out(same[0], 0)
    assert is_held_out(same[0], 1)


def test_no_token_reaches_across_the_end_of_a_prompt() -> None:
    text = FUNCTION.format(n=1)
    prompt = text.index("    return")
    tokenizer = train_tokenizer([text] * 50, 300)
    ids = corpus.encode(tokenizer, [Document(text, "function", "x", "y", prompt)]).tolist()
    rest = tokenizer(text[prompt:], add_special_tokens=False)["input_ids"]
    assert ids == [*tokenizer(text[:prompt])["input_ids"], *rest]
    assert ids != tokenizer(text)["input_ids"]
