"""Tests see neither the user's folders and settings nor the network, nor what lies beside the repository."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INNER = """
import os, socket
from pathlib import Path
from huggingface_hub import constants
from lade.files.cachefolder import cache_folder

def test_surroundings():
    mine = Path(os.environ["HOME"])
    assert mine.is_dir() and "nowhere" not in str(mine)
    assert Path(constants.HF_HOME).parent == mine.parent and constants.HF_HUB_OFFLINE
    assert cache_folder().parent == mine.parent
    assert not [name for name in ("USE_LADE", "HF_ENDPOINT", "HF_TOKEN") if name in os.environ]
    assert not any(Path("..").glob("x")) and not Path("x").exists()
"""


def test_folders_are_the_tests_own() -> None:
    home = Path(os.environ["HOME"])
    assert Path.home() == home
    assert Path(os.environ["LADE_CACHE"]).parent == Path(os.environ["HF_HOME"]).parent == home.parent
    assert not home.is_relative_to(ROOT)


def test_nothing_lies_where_a_test_begins() -> None:
    assert [*Path.cwd().iterdir()] == []
    assert [path.name for path in Path("..").iterdir()] == [Path.cwd().name]


@pytest.mark.parametrize("host", ["93.184.215.14", "huggingface.co", "::ffff:8.8.8.8"])
def test_the_network_is_not_reached(host: str) -> None:
    with socket.socket() as one, pytest.raises(pytest.fail.Exception, match="asked the network"):
        one.connect((host, 80))
    with socket.socket() as one, pytest.raises(pytest.fail.Exception, match="asked the network"):
        one.connect_ex((host, 80))
    with pytest.raises(pytest.fail.Exception, match="asked the network"):
        socket.create_connection((host, 80), timeout=1)


def test_this_machine_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()[:2], timeout=1).close()


@pytest.mark.real
def test_a_home_that_takes_nothing_and_settings_of_the_user_do_not_matter(tmp_path: Path) -> None:
    """A session of its own, with neighbours called `x` and what a user may have set."""
    (tmp_path / "clone").mkdir()
    (tmp_path / "x").mkdir()
    for name in ("conftest.py", "isolation.py", "machinecode.py"):
        (tmp_path / "clone" / name).write_text((ROOT / "tests" / name).read_text())
    (tmp_path / "clone" / "test_inner.py").write_text(INNER)
    foreign = {"HOME": "/proc/nowhere", "USE_LADE": "0", "HF_ENDPOINT": "https://hub.test", "HF_TOKEN": "secret"}
    search = os.pathsep.join([str(tmp_path / "clone"), str(ROOT)])
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_inner.py"],
        cwd=tmp_path / "clone",
        env=os.environ | foreign | {"PYTHONPATH": search},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
