"""Scores: exact match of numbers, and which program a completion makes of a task."""

from decimal import Decimal

import pytest

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.scoring import gsm8k, human_eval, mbpp
from lade.applications.bench.scoring.python_code import fenced, until
from lade.applications.bench.suites import SUITES


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" 9 * 2 = 18\n#### 18", "18"),
        ("#### $1,234,567.50 a year", "1234567.50"),
        ("####-5", "-5"),
        ("#### -$5", "-5"),
        ("#### $-5", "-5"),
        ("#### −5", "-5"),
        ("#### 18\n\nQuestion: Is it 19?\nAnswer: #### 20", "18"),
        ("#### 3\n#### 4", "3"),
        ("The answer is **18**.", "18"),
        ("So she makes $18.00.", "18.00"),
        ("16-3=13 and 13-4=9", "9"),
        ("16 - 3 is 13, which is -(-13)", "-13"),
        ("It takes 1,000, or \\boxed{1000}", "1000"),
        ("half of it, .5", "0.5"),
        ("7 eggs\nQuestion: How about 8?", "7"),
        ("#### eighteen, that is 18", "18"),
        ("room b12 has v1.5", None),
        ("", None),
        ("none at all.", None),
    ],
)
def test_answers_of_texts(text: str, answer: str | None) -> None:
    assert gsm8k.answer_of(text) == (None if answer is None else Decimal(answer))


def test_exact_match() -> None:
    prompt = Prompt(0, ("Question: How many?\nAnswer:",), answer="1,080")
    right = ("#### 1080", "#### $1,080.00", "That makes 1080 in all.")
    wrong = ("#### 1081", "#### 108", "#### 1081, not 1080", "", "1080 of 2000")
    assert [gsm8k.score(prompt, text, False) for text in (*right, *wrong)] == [True] * 3 + [False] * 5
    assert gsm8k.score(prompt, right[0], True)


def test_worked_solutions_are_right() -> None:
    prompts = SUITES["gsm8k"].load()
    assert all(gsm8k.score(prompt, f"so it is {prompt.answer}", False) for prompt in prompts)


def test_code_in_fences() -> None:
    assert fenced("```\na = 1\n```") == "a = 1\n"
    assert (
        fenced("Sure!\n\n```python\ndef f():\n    return 1\n```\nThis\n```python\nb\n```") == "def f():\n    return 1\n"
    )
    assert fenced("\n```python \na = '```'\n") == "a = '```'\n"
    assert fenced("```py\na = 1") == "a = 1"
    assert fenced("    return 1\n```\nThat is it:\n```python\nb\n```") is None
    assert fenced("no code, `x`") is None


def test_text_up_to_a_stop() -> None:
    assert until("a\nb\nc", ("\nc", "\nb")) == "a"
    assert until("class A", ("\nclass",)) == "class A"


HEAD = 'def double(x):\n    """Twice x."""\n'
HUMAN_EVAL = Prompt(
    "HumanEval/x", (HEAD,), answer=human_eval.HumanEvalTests("def check(f):\n    assert f(2) == 4\n", "double")
)
MBPP = Prompt(7, ('"""\nDouble.\n"""\n',), answer=mbpp.MbppTests("half = 2", "assert double(half) == 4"))


def test_the_program_of_a_function_to_complete() -> None:
    checks = "\ndef check(f):\n    assert f(2) == 4\n\ncheck(double)\n"
    assert human_eval.program(HUMAN_EVAL, "    return 2 * x\n\nprint(double(3))\n") == (
        HEAD + "    return 2 * x\n" + checks
    )
    whole = "def double(x):\n    return 2 * x\n"
    assert human_eval.program(HUMAN_EVAL, f"Here it is:\n```python\n{whole}```\n") == HEAD + "\n" + whole + checks


@pytest.mark.parametrize("stop", human_eval.STOPS)
def test_where_a_function_ends(stop: str) -> None:
    completion = f"    return 1{stop} of something else"
    assert human_eval.program(HUMAN_EVAL, completion) == human_eval.program(HUMAN_EVAL, "    return 1")


def test_the_program_of_a_task() -> None:
    code = "def double(x):\n    return 2 * x"
    expected = f"{code}\nhalf = 2\nassert double(half) == 4\n"
    for completion in (f"{code}\nassert False", f'{code}\n"""\nNext task', f"```python\n{code}\n```"):
        assert mbpp.program(MBPP, completion).replace("\n\n", "\n") == expected


@pytest.mark.parametrize("name", ["human_eval", "mbpp"])
def test_nothing_runs_without_leave(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.Popen", refuse)
    suite = SUITES[name]
    assert suite.executes
    assert suite.score is not None
    assert suite.score(suite.load()[0], "raise SystemExit", False) is None
