"""The prompts of a bench: suites by name, or one file. Knows no tokenizer and no model."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path

from lade.applications.bench.prompts import MAX_BYTES, Prompt, PromptError, read_prompts
from lade.applications.bench.scoring.sandbox import SandboxError, passes
from lade.applications.bench.suites import SUITES
from lade.applications.bench.suites.suite import Scorer
from lade.applications.bench.task import Score
from lade.base.shown import invalid, shown
from lade.files.jsonobject import json_object, read_lines

DEFAULT_SUITES = "human_eval,gsm8k,mbpp"  # they ship with lade and can be scored


@dataclass(frozen=True)
class PromptSet:
    """Named prompts, and the scorer of their answers."""

    name: str
    prompts: tuple[Prompt, ...]
    score: Score | None = None
    unscored: bool = False  # scoring needs --execute, which is not given

    @property
    def digest(self) -> str:
        """A hash of the prompts and answers."""
        texts = [(prompt.id, prompt.turns, prompt.category, _plain(prompt.answer)) for prompt in self.prompts]
        return blake2b(repr(texts).encode(errors="surrogatepass"), digest_size=8).hexdigest()


def from_file(path: Path, limit: int | None, offset: int) -> list[PromptSet]:
    return [PromptSet(path.stem, tuple(read_prompts(path, limit, offset)))]


Ids = Mapping[str, Collection[str | int]]  # by suite


def read_ids(path: Path) -> Ids:
    """The prompts that a file names, as JSON lines such as {"suite": "gsm8k", "id": 3}.

    Raises:
        ValueError: names the file and the line.
    """
    found: dict[str, list[str | int]] = {}
    for number, line in read_lines(path, MAX_BYTES):
        row = json_object(line, f"{path}:{number}")
        suite, prompt_id = row.get("suite"), row.get("id")
        if not isinstance(suite, str) or isinstance(prompt_id, bool) or not isinstance(prompt_id, str | int):
            raise invalid(f"{path}:{number}", 'an object with "suite" and "id"', row)
        found.setdefault(suite, []).append(prompt_id)
    return found


def from_suites(names: str, limit: int | None, offset: int, execute: bool, ids: Ids | None = None) -> list[PromptSet]:
    """The prompts of suites; with `ids` only those, in the order of the suite.

    Raises:
        ValueError: names a suite that is unknown, given twice, or has no prompts here.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise invalid("--suite", f"at least one of {', '.join(SUITES)}", names)
    for name in wanted:
        if name not in SUITES:
            raise invalid("--suite", f"among {', '.join(SUITES)}", name)
        if wanted.count(name) > 1:
            raise ValueError(f"--suite must name different suites, got {name!r} twice")
    if execute and any(SUITES[name].executes for name in wanted):
        _check_sandbox()
    return [_suite(name, limit, offset, execute, ids) for name in wanted]


def _check_sandbox() -> None:
    """ValueError where generated code cannot be run safely; checked before the first run."""
    try:
        passes("")
    except SandboxError as error:
        raise ValueError(f"--execute: {error}") from error


def _suite(name: str, limit: int | None, offset: int, execute: bool, ids: Ids | None) -> PromptSet:
    suite = SUITES[name]
    prompts = _named(suite.load(), name, ids)
    chosen: Sequence[Prompt] = prompts[offset:][:limit]
    if not chosen:
        raise PromptError(f"suite {name}: holds {len(prompts)} prompts, none after the first {offset}")
    scorer = suite.score
    if scorer is None or (suite.executes and not execute):
        return PromptSet(name, tuple(chosen), unscored=scorer is not None)
    return PromptSet(name, tuple(chosen), partial(_score, scorer, execute))


def _named(prompts: Sequence[Prompt], suite: str, ids: Ids | None) -> Sequence[Prompt]:
    """The prompts with these ids; all without ids."""
    if ids is None:
        return prompts
    wanted = set(ids.get(suite, ()))
    if not wanted:
        raise PromptError(f"--ids must name at least one prompt of suite {suite}, got none")
    unknown = wanted - {prompt.id for prompt in prompts}
    if unknown:
        raise PromptError(f"suite {suite}: has no prompt {shown(min(unknown, key=str))}")
    return [prompt for prompt in prompts if prompt.id in wanted]


def _score(scorer: Scorer, execute: bool, prompt: Prompt, text: str) -> bool | None:
    return scorer(prompt, text, execute)


def _plain(answer: object) -> object:
    return asdict(answer) if is_dataclass(answer) and not isinstance(answer, type) else answer
