"""A pace on a simulated machine: what it learns of it, and the script that measures what its choices are worth."""

import json
import random

import pytest
from click.testing import CliRunner
from simulated_pace import MACHINES, Simulated, Timed, main

from lade.pace.cost import StepCost
from lade.pace.shared import SharedCost
from lade.pace.sharing import PACKED, Row

CONTEXT, LIMIT = 100, 48
CODE = MACHINES["lade-code-8M"]


def decoded(cost: StepCost, rows_of_steps: list[int], noise: float, chance: float) -> Timed:
    """A pace after steps of so many rows, whose drafts are accepted with a chance."""
    machine, draws = Simulated(CODE, noise), random.Random(0)
    pace = Timed(machine, SharedCost(cost, lambda logs: None), LIMIT, sharing=PACKED)
    beliefs = [pace.start() for _ in range(max(rows_of_steps))]
    for rows in rows_of_steps:
        room, nodes = pace.begin([CONTEXT] * rows, beliefs[:rows]), [1] * rows
        if room > rows:
            masses = [[chance**depth for depth in range(min(room // rows, LIMIT))] for _ in range(rows)]
            nodes = pace.choose([Row(each, belief) for each, belief in zip(masses, beliefs, strict=False)])
        pace.carry(nodes)
        pace.verified()
        for belief in beliefs[:rows] if room > rows else ():
            pace.learn(belief, chance, chance if draws.random() < chance else 0.0)
        pace.ended()
    return pace


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_it_learns_what_steps_and_looks_take(rows: int, noise: float) -> None:
    """In an engine, other numbers of rows come first: costs of 4 rows were taken for half of what they are."""
    cost = StepCost()
    earlier = [each for each in (16, 8, 4, 3, 2, 1) for _ in range(20) if each != rows]
    pace = decoded(cost, earlier + [rows] * 200, noise, chance=0.8)
    one, wide = CODE.step_of(rows, rows), CODE.step_of(rows, 2 * rows)
    assert cost.table(LIMIT, CONTEXT, rows)[2] == pytest.approx(wide / one, rel=0.08 + noise)
    assert pace._overhead.ratio(rows) == pytest.approx(CODE.look_of(rows) / one, rel=0.1 + noise)


@pytest.mark.real
def test_the_same_command_gives_the_same_figures() -> None:
    arguments = ["stories260K", "--rows", "1,2", "--rounds", "1", "--tokens", "16", "--json"]
    first, second = [CliRunner().invoke(main, arguments, catch_exceptions=False).stdout for _ in range(2)]
    assert first == second
    found = json.loads(first)["worth"]
    assert [(each["load"], each["rows"]) for each in found] == [
        ("steady", 1),
        ("steady", 2),
        ("batch", 1),
        ("batch", 2),
    ]
    assert all(0.5 < each["worst"] <= each["ratio"] < 9 and 0 < each["looks"] <= 1 for each in found)


def test_without_drafts_a_machine_takes_no_time_for_looks() -> None:
    machine = Simulated(CODE, noise=0.0)
    pace = Timed(machine, SharedCost(StepCost(), lambda logs: None), LIMIT, sharing=PACKED)
    pace.off = True
    for _ in range(3):
        assert pace.begin([CONTEXT] * 2, [pace.start()] * 2) == 2
        pace.carry([1, 1])
        pace.verified()
        pace.ended()
    assert machine.taken == pytest.approx(3 * CODE.step_of(2, 2))
    assert machine.now == pytest.approx(machine.taken / 1000)
    assert (machine.steps, machine.looks) == (3, 0)


@pytest.mark.parametrize("rows", ["", "0", "1,x", "2,-1"])
def test_rows_must_be_numbers(rows: str) -> None:
    result = CliRunner().invoke(main, ["--rows", rows])
    assert result.exit_code == 2
    assert f"must be positive integers, separated by commas, got {rows!r}" in result.output
