"""HumanEval's pass@1: the head of the function with its completion passes the task's own tests."""

from dataclasses import dataclass

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.scoring.python_code import fenced, scorer, until

# Stop sequences of arXiv 2107.03374, section 2.2; "@" and the fence are bigcode-evaluation-harness's.
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n@", "\n```")


@dataclass(frozen=True)
class HumanEvalTests:
    """`code` defines `check(candidate)`, which raises an exception on failure; `function` is the candidate's name."""

    code: str
    function: str


def program(prompt: Prompt, completion: str) -> str:
    """The program to run. A fenced block defines the whole function again, after the unused head."""
    tests: HumanEvalTests = prompt.answer
    block = fenced(completion)
    body = until(completion, STOPS) if block is None else "\n" + block
    return f"{prompt.text}{body}\n{tests.code}\ncheck({tests.function})\n"


score = scorer(program)
