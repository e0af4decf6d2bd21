"""The documents of the repository: their blocks of code, words, sentences, links and numbers."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
README, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md"))
GENERATED = ROOT / "docs" / "reference"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BASH = shutil.which("bash") or "bash"
LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    page: Path
    language: str
    code: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.code.strip().splitlines()[0][:60]}"


def blocks(page: Path, *languages: str) -> list[Block]:
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(page, language, code) for language, code in found if not languages or language in languages]


def prose(page: Path) -> str:
    """A page without blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def outside_tables(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("|"))


def in_tables(text: str) -> str:
    return "\n".join(line.replace("|", " ") for line in text.splitlines() if line.startswith("|"))


def words(text: str) -> list[str]:
    """What stands between spaces and has a letter or a digit; a link counts by its text alone."""
    return [word for word in LINK.sub("]", text).split() if re.search(r"\w", word)]


def sentences(text: str) -> Iterator[str]:
    """Sentences end with . ! or ?, and with a paragraph, a list item or a heading."""
    for paragraph in re.split(r"\n\s*\n|\n(?=[-#*>]|\d+\.)", text):
        yield from re.split(r"(?<=[.!?])[*)\"']*\s+", " ".join(paragraph.split()))


def numbers(text: str) -> set[str]:
    """The figures of a text, and none of its links."""
    return set(re.findall(r"\d+(?:[.,]\d+)*", LINK.sub("]", text)))


def tables(text: str) -> list[list[list[str]]]:
    """The cells of the rows of each table, without the row of dashes."""
    found = [match[0].splitlines() for match in re.finditer(r"(?:^\|.*\n)+", text, re.MULTILINE)]
    return [[line.strip("|").split("|") for line in table if not re.fullmatch(r"[|:-]+", line)] for table in found]


def links(page: Path) -> list[str]:
    return LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# Functions of bash that stand for programs: they note what they are called with. No program is on the PATH.
NOTES = """
note() { printf '%s\\x1f' "$@" >> "$CALLS"; printf '\\x1e' >> "$CALLS"; }
command_not_found_handle() { note "$@"; }
for program in python pip pytest lade ruff; do eval ".venv/bin/$program() { note $program \\"\\$@\\"; }"; done
.ci/run() { :; }
set -eu
"""


def calls(page: Path, folder: Path) -> list[list[str]]:
    """The programs that a page's shell blocks call, one after the other in one shell, with their arguments.

    Args:
        folder: an empty one, where the shell runs.
    """
    script = NOTES + "".join(block.code for block in blocks(page, "sh", "bash"))
    environment = {"PATH": str(folder / "none"), "CALLS": str(folder / "calls"), "LADE_DATA": "data"}
    done = subprocess.run([BASH, "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    noted = (folder / "calls").read_text() if (folder / "calls").exists() else ""
    return [call.split("\x1f")[:-1] for call in noted.split("\x1e")[:-1]]
