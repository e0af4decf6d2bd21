"""The prompts of a bench: suites by name, or one file. Knows no tokenizer and no model."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path

from lade.applications.bench.prompts import Prompt, PromptError, read_prompts
from lade.applications.bench.scoring.sandbox import SandboxError, passes
from lade.applications.bench.suites import SUITES
from lade.applications.bench.suites.suite import Scorer
from lade.applications.bench.task import Score
from lade.base.shown import invalid

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


def from_suites(names: str, limit: int | None, offset: int, execute: bool) -> list[PromptSet]:
    """ValueError names a suite that is unknown, given twice, or has no prompts here."""
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
    return [_suite(name, limit, offset, execute) for name in wanted]


def _check_sandbox() -> None:
    """ValueError where generated code cannot be run safely; checked before the first run."""
    try:
        passes("")
    except SandboxError as error:
        raise ValueError(f"--execute: {error}") from error


def _suite(name: str, limit: int | None, offset: int, execute: bool) -> PromptSet:
    suite = SUITES[name]
    prompts = suite.load()
    chosen: Sequence[Prompt] = prompts[offset:][:limit]
    if not chosen:
        raise PromptError(f"suite {name}: holds {len(prompts)} prompts, none after the first {offset}")
    scorer = suite.score
    if scorer is None or (suite.executes and not execute):
        return PromptSet(name, tuple(chosen), unscored=scorer is not None)
    return PromptSet(name, tuple(chosen), partial(_score, scorer, execute))


def _score(scorer: Scorer, execute: bool, prompt: Prompt, text: str) -> bool | None:
    return scorer(prompt, text, execute)


def _plain(answer: object) -> object:
    return asdict(answer) if is_dataclass(answer) and not isinstance(answer, type) else answer
