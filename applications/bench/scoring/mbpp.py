"""MBPP's pass@1: the code passes the task's three tests."""

from dataclasses import dataclass

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.scoring.python_code import fenced, scorer, until

# Stop sequences of bigcode-evaluation-harness for MBPP.
STOPS = ("\nclass", "\nassert", '\n"""', "\nprint", "\nif", "\n<|/", "\n```")


@dataclass(frozen=True)
class MbppTests:
    """The setup code of the tests, then the tests: assertions about the answer."""

    setup: str
    code: str


def program(prompt: Prompt, completion: str) -> str:
    tests: MbppTests = prompt.answer
    block = fenced(completion)
    code = until(completion, STOPS) if block is None else block
    return f"{code}\n{tests.setup}\n{tests.code}\n"


score = scorer(program)
