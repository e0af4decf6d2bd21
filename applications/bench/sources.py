"""Where a bench's prompts come from: suites by name, or one file. Knows no tokenizer and no model."""

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

DEFAULT_SUITES = "human_eval,gsm8k,mbpp"  # they ship, and their answers can be scored


@dataclass(frozen=True)
class Source:
    """Prompts under a name, and how an answer to one is judged."""

    name: str
    prompts: tuple[Prompt, ...]
    score: Score | None = None
    unscored: bool = False  # answers would have to be run, which was not allowed

    @property
    def digest(self) -> str:
        """The same for the same prompts and answers."""
        texts = [(prompt.id, prompt.turns, prompt.category, _plain(prompt.answer)) for prompt in self.prompts]
        return blake2b(repr(texts).encode(errors="surrogatepass"), digest_size=8).hexdigest()


def from_file(path: Path, limit: int | None, offset: int) -> list[Source]:
    return [Source(path.stem, tuple(read_prompts(path, limit, offset)))]


def from_suites(names: str, limit: int | None, offset: int, execute: bool) -> list[Source]:
    """ValueError names a suite that is not known, stands twice, or whose prompts are not at hand."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise ValueError(f"--suite {names!r}: at least one name is needed, known are {', '.join(SUITES)}")
    for name in wanted:
        if name not in SUITES:
            raise ValueError(f"--suite {names}: unknown suite {name!r}: known are {', '.join(SUITES)}")
        if wanted.count(name) > 1:
            raise ValueError(f"--suite {names}: suite {name!r} stands twice")
    if execute and any(SUITES[name].executes for name in wanted):
        _check_sandbox()
    return [_suite(name, limit, offset, execute) for name in wanted]


def _check_sandbox() -> None:
    """Before the first run, not behind it: ValueError where generated code cannot be run safely."""
    try:
        passes("")
    except SandboxError as error:
        raise ValueError(f"--execute: {error}") from error


def _suite(name: str, limit: int | None, offset: int, execute: bool) -> Source:
    suite = SUITES[name]
    prompts = suite.load()
    chosen: Sequence[Prompt] = prompts[offset:][:limit]
    if not chosen:
        raise PromptError(f"suite {name}: holds {len(prompts)} prompts, none behind the first {offset}")
    judge = suite.score
    if judge is None or (suite.executes and not execute):
        return Source(name, tuple(chosen), unscored=judge is not None)
    return Source(name, tuple(chosen), partial(_judged, judge, execute))


def _judged(judge: Scorer, execute: bool, prompt: Prompt, text: str) -> bool | None:
    return judge(prompt, text, execute)


def _plain(answer: object) -> object:
    return asdict(answer) if is_dataclass(answer) and not isinstance(answer, type) else answer
