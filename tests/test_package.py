"""The package as it is installed: every folder with code is listed, and the models that ship are inside."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.resources import files
from inspect import signature
from pathlib import Path
from types import FunctionType

from forks import forget_lade, needs_fork, run_in_a_child

import lade
from lade.models import load
from lade.models.shipped import NAMES

ROOT = Path(__file__).parents[1]
IMPORTED = {"pillow": "PIL"}  # packages under the names that imports have, of those that differ
FOLDERS = {"lade": "lade", "lade.models": "models", "lade.applications": "applications"}


def test_every_folder_with_code_is_packaged() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        ".".join([name, *init.parent.relative_to(ROOT / folder).parts])
        for name, folder in FOLDERS.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert sorted(settings["packages"]) == sorted(found)


def needs(paths: Iterable[Path]) -> set[str]:
    """The packages that files import as they are imported themselves."""
    statements = [statement for path in paths for statement in ast.parse(path.read_text()).body]
    names = {name.split(".")[0] for statement in statements for name in imported(statement)}
    return names - sys.stdlib_module_names - {"lade"}


def declared(requirements: Iterable[str]) -> set[str]:
    """Their names, as they are imported."""
    names = {re.split("[<>=!~; [(]", requirement)[0].replace("-", "_") for requirement in requirements}
    return {IMPORTED.get(name, name) for name in names}


def test_what_every_import_of_the_package_needs_is_declared() -> None:
    """Imports inside functions are left to the extras; the server's modules, but its command, are those of two, and
    those about images are those of one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    paths = [path for folder in ("lade", "models", "applications") for path in (ROOT / folder).rglob("*.py")]
    replicas = [path for path in paths if path.parent.name == "ray_serve"]
    server = [path for path in paths if "serve" in path.relative_to(ROOT).parts and path.name != "command.py"]
    kernels = [path for path in paths if path.name in ("kernel.py", "multiply.py", "pointwise.py")]
    images = [path for path in paths if path.parent.name == "images"]
    others = set(paths) - set(images) - set(server) - set(replicas) - set(kernels)
    assert {"torch", "transformers"} <= needs(others) <= declared(project["dependencies"])
    extra = declared(project["optional-dependencies"]["serve"])
    assert {"fastapi"} <= needs(server) - declared(project["dependencies"]) <= extra
    assert needs(images) - declared(project["dependencies"]) == {"PIL"} <= extra
    assert needs(kernels) == {"triton"} == declared(project["optional-dependencies"]["triton"])
    assert needs(replicas) == {"click", "prometheus_client", "ray"}
    assert declared(project["optional-dependencies"]["ray"]) == {"ray"}


def test_every_extra_has_code_that_needs_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    code = "\n".join(path.read_text() for name in FOLDERS.values() for path in (ROOT / name).rglob("*.py"))
    users = {name: packages for name, packages in extras.items() if name not in ("all", "dev", "real")}
    for name, packages in users.items():
        for package in packages:
            assert declared([package]).pop() in code, name
    assert extras["all"] == [f"lade-decoding[{','.join(sorted(users.keys() - {'vllm'}))}]"]  # it asks for one torch


def test_every_hint_names_the_distribution_and_its_extras() -> None:
    """`lade` on the package index is another project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    code = [path for name in ("lade", "models", "applications") for path in (ROOT / name).rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in (*code, *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))]
    hints = {hint for text in texts for hint in re.findall(r"pip install '([^'.]*)\[([a-z,]*)\]'", text)}
    assert {name for name, _ in hints} == {project["name"]}
    named = {extra for _, extras in hints for extra in extras.split(",")}
    assert {"quant", "serve"} <= named <= set(project["optional-dependencies"])


def imported(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    return [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []


def test_the_version_stands_in_one_place_and_the_changelog_tells_of_it() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in settings["project"]["dynamic"]
    assert settings["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "lade.base.version.VERSION"}
    latest = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert latest is not None
    assert latest[1] == lade.__version__
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert cited[1] == lade.__version__


def test_types_pages_and_weights_are_installed() -> None:
    assert files("lade").joinpath("py.typed").is_file()
    for file in ("index.html", "page.css", "page.js"):
        assert files("lade.applications.serve").joinpath("page", file).is_file()
    for name in NAMES:
        for file in ("model.safetensors", "tokenizer.json", "LICENSE"):
            assert files("lade.models").joinpath("pretrained", name, file).is_file()


def test_readme_and_ci_run_the_same_tests() -> None:
    command = next(line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("TESTS="))
    assert command.removeprefix("TESTS=").strip("'\"") in (ROOT / "README.md").read_text()


def test_public_functions_say_what_they_return() -> None:
    """To type checkers; a wrapper of another library may stand for a model, so arguments may be anything."""
    functions = [value for name in lade.__all__ if isinstance(value := getattr(lade, name), FunctionType)]
    told = {function.__name__: str(signature(function).return_annotation) for function in (*functions, load)}
    assert len(told) > 15
    assert not [name for name, annotation in told.items() if re.search(r"\bAny\b|^$|_empty", annotation)]


IMPORTS_ALL = """
import importlib, os, pkgutil, sys
import torch.distributed, transformers.generation.utils, transformers.pipelines, accelerate, peft
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("fork", "killpg", "mkfifo", "register_at_fork", "sched_getaffinity", "setsid"):
    if hasattr(os, name):
        delattr(os, name)
import lade
for module in pkgutil.walk_packages(lade.__path__, "lade."):
    if not module.name.endswith((".jail", ".ray_serve.cluster")):  # a program for Linux, and what needs an extra
        importlib.import_module(module.name)
"""


@needs_fork
def test_every_module_is_imported_without_posix() -> None:
    """As on Windows."""

    def without_posix() -> None:
        forget_lade()
        exec(IMPORTS_ALL, {})

    done = run_in_a_child(without_posix)
    assert done.returncode == 0, done.stderr[-2000:]
