"""Short tasks with answers: GSM8K's training split, and MBPP outside its test split.

Reads the data sets' own files from a folder and reports missing ones. Knows the splits, no tokens.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lade.models.pretrained.documents import Document
from lade.models.pretrained.functions import prompt_end

GSM8K, MBPP = "GSM8K, training split", "MBPP, outside its test split"
EXERCISES = {  # name: (file in the data folder, licence)
    GSM8K: ("gsm8k/train.jsonl", "MIT"),
    MBPP: ("mbpp/mbpp.jsonl", "CC-BY-4.0"),
}
MBPP_TEST = range(11, 511)  # task ids of the test split
CALCULATION = re.compile(r"<<[^>]*>>")


def exercise_documents(data: Path | None, say: Callable[[str], None]) -> Iterator[Document]:
    """Programming exercises and questions with answers; `say` gets a line per missing file."""
    for name, (file, _) in EXERCISES.items():
        path = None if data is None else data / file
        if path is None or not path.is_file():
            say(f"{name} is left out: {path or 'no data folder'} is not there")
        elif name == MBPP:
            for task, text in mbpp(path):
                yield Document(text, "exercise", name, f"mbpp/{task}", prompt_end(text))
        else:
            yield from (Document(text, "answer", name, f"gsm8k/{n}") for n, text in enumerate(gsm8k(path)))


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def gsm8k(path: Path) -> Iterator[str]:
    """Questions with worked answers, without calculator annotations."""
    for row in json_lines(path):
        yield f"Question: {row['question'].strip()}\nAnswer: {CALCULATION.sub('', row['answer']).strip()}\n"


def mbpp(path: Path) -> Iterator[tuple[int, str]]:
    """(task id, text): each task twice, as a function with a docstring and as a task above its code."""
    for row in json_lines(path):
        if row["task_id"] not in MBPP_TEST:
            code = row["code"].replace("\r\n", "\n").expandtabs(4).strip()
            tests = "\n".join(row["test_list"])
            yield row["task_id"], f'"""\n{row["text"].strip()}\n{tests}\n"""\n{code}\n'
            documented = _documented(code, row["text"].strip(), row["test_list"])
            if documented:
                yield row["task_id"], documented


def _documented(code: str, text: str, tests: list[str]) -> str | None:
    """The code with the task as the docstring of the tested function, its tests as examples in there."""
    try:
        module, examples = ast.parse(code), [_example(test) for test in tests]
    except SyntaxError:
        return None
    called = next((name for name, _ in filter(None, examples)), None)
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == called:
            shown = [f"    >>> {call}\n    {value}" for call, value in _calls(examples)]
            node.body.insert(0, ast.Expr(ast.Constant("\n".join([" " + text, *shown, "    "]))))
            return ast.unparse(ast.fix_missing_locations(module)) + "\n"
    return None


def _calls(examples: list[tuple[str, tuple[str, str]] | None]) -> list[tuple[str, str]]:
    return [shown for _, shown in filter(None, examples)]


def _example(test: str) -> tuple[str, tuple[str, str]] | None:
    """(name, (call, value)) of `assert name(...) == value`."""
    statement = ast.parse(test).body[0]
    if not (isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare)):
        return None
    call = statement.test.left
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        return None
    return call.func.id, (ast.unparse(call), ast.unparse(statement.test.comparators[0]))
