"""Costs of steps and of looks for drafts that do not depend on the machine, for tests that count steps."""

import pytest

from lade.drafters import factory
from lade.pace.overhead import Overhead
from lade.target import model


class FixedCosts:
    """A wider forward costs 2% more per token."""

    def observe(self, tokens: int, context: int, rows: int, seconds: float, first: bool = False) -> None:
        pass

    def table(self, limit: int, context: int, rows: int) -> list[float]:
        return [1.0, *(1 + 0.02 * further for further in range(limit))]

    def known(self, tokens: int, context: int, rows: int) -> bool:
        return True

    def save(self) -> None:
        pass


def fix_costs(monkeypatch: pytest.MonkeyPatch, look: float = 0.0) -> None:
    """For all calls and engines from now on. A look takes so many steps of one token."""
    monkeypatch.setattr(factory, "shared_cost", lambda *given: FixedCosts())
    monkeypatch.setattr(Overhead, "ratio", lambda self, rows: look)
    monkeypatch.setattr(model, "tried", lambda: 0)  # which shapes were tried before depends on the tests before
