"""Waiting for a collective: on and on, and an error only if it has failed; an interval may end as it completes."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import lade
from lade.distributed import group as groups
from lade.distributed.group import Group, one_call


@dataclass
class Work:
    """A collective: the interval ends a number of times first; it completes as the last of them ends."""

    intervals: int
    failure: str | None = None
    waits: int = 0

    def is_completed(self) -> bool:
        return self.waits >= self.intervals

    def wait(self, interval: timedelta) -> None:
        completed, self.waits = self.is_completed(), self.waits + 1
        if not completed:
            raise RuntimeError("Operation timed out!")
        if self.failure is not None:
            raise RuntimeError(self.failure)


@dataclass
class Calm:
    """A watch that finds nothing wrong."""

    interval: float = 0.1
    checks: int = 0

    def check(self) -> None:
        self.checks += 1

    def fail(self, message: str) -> None: ...

    def blame(self, error: BaseException) -> lade.RankError:
        return lade.RankError(str(error))


def group() -> Any:
    found: Any = object.__new__(Group)
    found.watch = Calm()
    return found


@pytest.mark.parametrize("intervals", [0, 1, 3])
def test_slow_collectives(intervals: int) -> None:
    waiting = group()
    waiting._wait(Work(intervals))
    assert waiting.watch.checks == intervals


@pytest.mark.parametrize("intervals", [0, 2])
def test_failed_collectives(intervals: int) -> None:
    with pytest.raises(lade.RankError, match="connection is gone"):
        group()._wait(Work(intervals, "connection is gone"))


@pytest.mark.parametrize(
    ("message", "kind"),
    [("Application timeout caused pair closure", lade.RankError), ("a shape of the model's", RuntimeError)],
)
def test_errors_of_a_models_own_exchanges(message: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "group_of", lambda timeout: group())
    with pytest.raises(RuntimeError, match=message) as raised, one_call(1.0):
        raise RuntimeError(message)
    assert raised.type is kind
