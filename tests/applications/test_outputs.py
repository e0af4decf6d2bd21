"""Files that a command writes: what is a place for one."""

import os
from pathlib import Path

import pytest

from lade.applications.outputs import check_folder_of, make_room
from lade.files.atomic import put_in_place


@pytest.mark.skipif(os.name != "posix", reason="links are POSIX's")
def test_a_link_to_itself_is_replaced(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    make_room("--out", link)
    check_folder_of("--out", link)
    put_in_place(link, b"new")
    assert link.read_bytes() == b"new"
