"""What tests of static steps share."""

import pytest


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels run, in Triton's interpreter, as on a device that has them."""
    interpreted = pytest.importorskip("interpreted", reason="needs triton", exc_type=ImportError)
    if not interpreted.chosen():
        pytest.skip("needs Triton's interpreter: no CUDA device")
    interpreted.hasten()
    monkeypatch.setattr("lade.kernels.available.runs", lambda device: True)
