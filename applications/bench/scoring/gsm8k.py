"""GSM8K's exact match: the number after "####", as its authors define it, else the last number of the answer."""

import re
from decimal import Decimal

from lade.applications.bench.prompts import Prompt

NUMBER = re.compile(r"(?<![\w.])([-−]?)\$?([-−]?)(\d[\d,]*(?:\.\d+)?|\.\d+)")
NEXT_QUESTION = "\nQuestion:"  # where a base model starts a new problem


def score(prompt: Prompt, completion: str, execute: bool) -> bool:
    found = answer_of(completion)
    return found is not None and found == answer_of(prompt.answer)


def answer_of(text: str) -> Decimal | None:
    """The number that a text gives as its answer; signs, "$" and thousands separators are parsed."""
    text = text.partition(NEXT_QUESTION)[0]
    marked = NUMBER.match(text.partition("####")[2].lstrip())
    numbers = [marked] if marked else list(NUMBER.finditer(text))
    if not numbers:
        return None
    sign, inner_sign, digits = numbers[-1].groups()
    return Decimal(digits.replace(",", "")) * (-1 if sign or inner_sign else 1)
