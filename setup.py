"""Where the packages lie; all else stands in pyproject.toml.

`models/` and `applications/` stand at the top of the repository and are installed inside the one import name, `lade`.
The links `lade/models` and `lade/applications` make the repository itself importable, so that an editable install is a
plain path, which mypy and editors can follow. Where a checkout has no links (Windows), setuptools maps the folders.
"""

from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
FOLDERS = ("models", "applications")
LINKED = all((HERE / "lade" / folder / "__init__.py").is_file() for folder in FOLDERS)

setup(package_dir={"": "."} if LINKED else {"lade": "lade", **{f"lade.{folder}": folder for folder in FOLDERS}})
