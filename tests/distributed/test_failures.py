"""A rank that dies or stops ends the run on all others; a long prefill does not. `benchmarks/failures.py` in small."""

import failures
import pytest
from forks import needs_fork

TIMEOUT = 5.0  # seconds
pytestmark = [pytest.mark.real, needs_fork]


@pytest.mark.parametrize(("number", "kind"), [(1, 0), (4, 0), (0, 1)])
def test_signals(number: int, kind: int) -> None:
    """SIGKILL and SIGSTOP of rank 0, which holds the store; SIGSTOP of a rank with a part of the weights."""
    run = failures.one(number, 2, failures.KINDS[kind], "auto", TIMEOUT, 0.0)
    assert failures.judged(run, TIMEOUT, 0.0) is None


def test_a_long_prefill() -> None:
    run = failures.one(0, 2, failures.KINDS[0], "auto", 1.0, 4.0)
    assert failures.judged(run, 1.0, 4.0) is None
