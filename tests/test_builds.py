"""What is built: a wheel and a source distribution of the same files, whether or not the checkout has links.

Git makes text files of links where the system has none (Windows): `lade/models` then holds `../models`.
"""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from lade.models.shipped import NAMES

pytest.importorskip("setuptools", minversion="77")

ROOT = Path(__file__).parents[1]
LEFT_OUT = (".git", ".venv", "build", "dist", "out", "runs", ".*_cache", ".hypothesis", "*.egg-info")  # by git
SHIPPED = ("model.safetensors", "tokenizer.json", "config.json", "LICENSE")  # of every model
LINKS = ("models", "applications")
GENERATED = ("__pycache__", "*.egg-info", "*.pyc")
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, 'build_' + sys.argv[1])('dist')"
LARGE = 1 << 16  # bytes
Files = dict[str, str]  # path -> hash of the content


def copy_beginning(source: str, target: str) -> None:
    """A large file's first bytes: compressing weights takes seconds, and nothing here reads them."""
    Path(target).write_bytes(Path(source).read_bytes()[:LARGE])


def checkout(folder: Path, linked: bool) -> Path:
    """A copy of the repository."""
    ignored = shutil.ignore_patterns(*GENERATED, *LEFT_OUT)
    shutil.copytree(ROOT, folder, symlinks=True, ignore=ignored, copy_function=copy_beginning, dirs_exist_ok=True)
    for name in LINKS:
        link = folder / "lade" / name
        if link.is_symlink() or link.is_file():
            link.unlink()
        if linked:
            link.symlink_to(Path("..") / name, target_is_directory=True)
        else:
            link.write_text(f"../{name}")
    return folder


def build(folder: Path, what: str) -> Path:
    """The archive, built offline by this environment's setuptools."""
    (folder / "dist").mkdir(exist_ok=True)
    before = set((folder / "dist").iterdir())
    result = subprocess.run([sys.executable, "-c", BUILD, what], cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (made,) = set((folder / "dist").iterdir()) - before
    return made


def wheel_files(wheel: Path) -> Files:
    """Of the package, and its licences."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith(("/RECORD", "/"))]
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in names}


def repository_files(folder: Path) -> set[str]:
    """All but the links and what a build writes."""
    made = ("dist", "build", *(f"lade/{name}" for name in LINKS))
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if not name.startswith(made) and ".egg-info/" not in name}


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("linked"), linked=True)


@pytest.fixture(scope="module")
def unlinked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("unlinked"), linked=False)


@pytest.fixture(scope="module")
def wheel(linked: Path) -> Files:
    return wheel_files(build(linked, "wheel"))


def test_the_repository_holds_links() -> None:
    """As git keeps them; a checkout that made files of them is as good."""
    for name in LINKS:
        link = ROOT / "lade" / name
        assert (link / "__init__.py").samefile(ROOT / name / "__init__.py") or link.read_text() == f"../{name}"


def test_the_wheel_holds_code_data_and_licences(wheel: Files) -> None:
    expected = {
        *(f"lade/models/pretrained/{name}/{file}" for name in NAMES for file in SHIPPED),
        "lade/py.typed",
        "lade/__main__.py",
        "lade/models/load.py",
        "lade/applications/cli.py",
        "lade/applications/bench/report/page.html.jinja",
    }
    assert expected <= set(wheel)
    for folder, package in (("lade", "lade"), ("models", "lade/models"), ("applications", "lade/applications")):
        for path in (ROOT / folder).rglob("*.py"):
            if not (folder == "lade" and path.relative_to(ROOT / folder).parts[0] in LINKS):
                assert str(PurePosixPath(package) / path.relative_to(ROOT / folder).as_posix()) in wheel
    licences = {name.partition(".dist-info/licenses/")[2] for name in wheel if "/licenses/" in name}
    for pattern in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]:
        assert {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)} <= licences


@pytest.mark.slow
def test_without_links_the_wheel_is_the_same(wheel: Files, unlinked: Path) -> None:
    assert wheel_files(build(unlinked, "wheel")) == wheel


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linked", "unlinked"])
def test_the_source_distribution_is_the_repository_and_makes_the_same_wheel(
    kind: str, wheel: Files, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(kind)
    folder = unpacked(build(source, "sdist"), tmp_path)
    assert repository_files(source) <= repository_files(folder)
    assert not [path for path in folder.rglob("*") if path.is_symlink()]  # for systems without links
    assert wheel_files(build(folder, "wheel")) == wheel


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linked", "unlinked"])
def test_an_editable_install_finds_the_checkout(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """By a path alone where there are links, which type checkers follow too; no other package is there."""
    folder = request.getfixturevalue(kind)
    with zipfile.ZipFile(build(folder, "editable")) as archive:
        archive.extractall(tmp_path)
    code = f"import site; site.addsitedir({str(tmp_path)!r}); import lade, lade.models, lade.applications as a; " + (
        "print(lade.__file__, lade.models.load.__code__.co_filename, a.__file__, sep='\\n')"
    )
    told = subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    expected = ("lade/__init__.py", "models/load.py", "applications/__init__.py")
    assert [Path(line).resolve() for line in told.stdout.split("\n") if line] == [
        (folder / name).resolve() for name in expected
    ]
    plain = {path.read_text().strip() for path in tmp_path.glob("*.pth")} == {str(folder)}
    assert plain == (kind == "linked")
