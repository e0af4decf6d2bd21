"""The rooms of the package: which modules may import which, held by reading every import there is."""

import ast
import graphlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What a room imports stands behind it. `models` holds what differs per family, which the entry asks for; the recipe of
# the models that ship, `models.pretrained`, uses the package as the commands do.
ROOMS = (
    *(
        "applications",
        "vllm",
        "models.pretrained",
        "entry",
        "measure",
        "models",
        "engine",
        "distributed",
        "drafters",
        "static",
        "memory.warm",
        "target",
        "kernels",
        "memory",
    ),
    *("pace", "core", "weights", "facts", "config", "files", "base"),
)
PATHS = {
    ".".join([name, *path.relative_to(ROOT / folder).with_suffix("").parts]).removesuffix(".__init__"): path
    for name, folder in (("lade", "lade"), ("lade.models", "models"), ("lade.applications", "applications"))
    for path in (ROOT / folder).rglob("*.py")
}
TOP = ("lade", "lade.__main__")  # the public names, and the command


def room_of(module: str) -> int:
    """Its place in `ROOMS`; the room with the longest name that fits."""
    fitting = [room for room in ROOMS if f"{module}.".startswith(f"lade.{room}.")]
    return ROOMS.index(max(fitting, key=len))


def imported(statements: Iterable[ast.AST]) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            yield statement.module or ""
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)


def modules_imported(module: str, anywhere: bool) -> set[str]:
    """Modules of the package that one imports, at its top or anywhere; not the packages that it lies in."""
    tree = ast.parse(PATHS[module].read_text(encoding="utf-8"))
    named = set(imported(ast.walk(tree) if anywhere else tree.body)) & set(PATHS)
    return {name for name in named if not f"{module}.".startswith(f"{name}.")}


def test_no_module_waits_for_itself() -> None:
    """Imports make no circle, in which threads that import at once would meet modules that are half there."""
    graphlib.TopologicalSorter({module: modules_imported(module, False) for module in PATHS}).prepare()


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room: str) -> None:
    """Those inside functions and those for type checkers too."""
    own = ROOMS.index(room)
    modules = [module for module in PATHS if module not in TOP and room_of(module) == own]
    assert len(modules) > 1
    against = [
        f"{module} imports {name}"
        for module in modules
        for name in sorted(modules_imported(module, True))
        if name not in TOP and room_of(name) < own
    ]
    assert not against


def test_the_package_itself_is_imported_by_its_users_alone() -> None:
    """`import lade` inside a room would import the entry through the back door."""
    users = {"applications", "models.pretrained"}
    found = {
        module
        for module, path in PATHS.items()
        if module not in TOP
        and ROOMS[room_of(module)] not in users
        and "lade" in set(imported(ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert not found
