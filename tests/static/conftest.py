"""What tests of static steps share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def short_slots() -> Iterator[None]:
    """Slots hold the short texts of tests, not a thousand tokens: every step attends to all that a slot may hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lade.static.shelf.NODES", (64,))
        patch.setattr("lade.static.shelf.SPARE", 64)
        yield


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels run, in Triton's interpreter, as on a device that has them."""
    interpreted = pytest.importorskip("interpreted", reason="needs triton", exc_type=ImportError)
    if not interpreted.chosen():
        pytest.skip("needs Triton's interpreter: no CUDA device")
    interpreted.hasten()
    monkeypatch.setattr("lade.kernels.available.runs", lambda device: True)
