"""Evaluation texts that must not be in the corpus, found verbatim in a document; white space is ignored.

Knows the data sets' files and no other part of the corpus.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from lade.models.pretrained.exercises import MBPP_TEST, json_lines

SHORTEST = 40  # characters without white space; shorter code is too common


class Withheld:
    """Texts to look for; a text is compared in full where its longest line is a line of the document."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._by_line: defaultdict[str, set[str]] = defaultdict(set)
        for text in texts:
            packed = _packed(text)
            if len(packed) >= SHORTEST:
                self._by_line[max(map(_packed, text.splitlines()), key=len)].add(packed)

    def __len__(self) -> int:
        return sum(map(len, self._by_line.values()))

    def is_in(self, text: str) -> bool:
        suspects = self._by_line.keys() & {_packed(line) for line in text.splitlines()}
        if not suspects:
            return False
        packed = _packed(text)
        return any(needle in packed for line in suspects for needle in self._by_line[line])


def evaluation_texts(data: Path) -> Iterator[str]:
    """HumanEval's solutions and prompts, MBPP's test split and GSM8K's test questions, where `data` has them."""
    human_eval = data / "human_eval" / "HumanEval.jsonl.gz"
    if human_eval.is_file():
        with gzip.open(human_eval, "rt", encoding="utf-8") as lines:
            for task in map(json.loads, lines):
                yield task["canonical_solution"]
                yield task["prompt"]
    if (data / "mbpp" / "mbpp.jsonl").is_file():
        for task in json_lines(data / "mbpp" / "mbpp.jsonl"):
            if task["task_id"] in MBPP_TEST:
                yield task["code"]
    if (data / "gsm8k" / "test.jsonl").is_file():
        for task in json_lines(data / "gsm8k" / "test.jsonl"):
            yield "Question: " + task["question"]


def _packed(text: str) -> str:
    return "".join(text.split())
