"""Which drafter a mode gets, and what of budget, tables, pools and references reaches it."""

import copy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from families import BY_NAME
from tiny import tiny_model
from transformers import PreTrainedModel

from lade import LookaheadConfig
from lade.config.settings import CAPACITY
from lade.core.drafter import Drafter
from lade.core.request import Request
from lade.drafters import compiling
from lade.drafters.blend import BlendDrafter
from lade.drafters.factory import ACCELERATOR_BUDGET, HOST_BUDGET, drafter_for, pace_for
from lade.drafters.jacobi import JacobiDrafter
from lade.memory.backoff import backoff
from lade.memory.pools import drop_pools, shared_pool
from lade.memory.warm import warming as warm
from lade.pace.pace import Pace
from lade.pace.shared import shared_cost
from lade.pace.sharing import PACKED, PADDED


@pytest.fixture(autouse=True)
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No tables and no pools but the test's own."""
    monkeypatch.setenv("LADE_CACHE", str(tmp_path))
    drop_pools()
    yield
    drop_pools()


@pytest.fixture
def model() -> PreTrainedModel:
    return copy.deepcopy(tiny_model(BY_NAME["llama"]))


def made(model: Any, **config: Any) -> Drafter:
    return drafter_for(model, LookaheadConfig(**config).settled())


def blend(model: Any, **config: Any) -> BlendDrafter:
    drafter = made(model, mode="auto", **config)
    assert isinstance(drafter, BlendDrafter)
    return drafter


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({}, BlendDrafter),
        ({"mode": "auto", "window": 3}, BlendDrafter),
        ({"budget": 5, "tenant": "me"}, BlendDrafter),
        ({"window": 3}, BlendDrafter),
        ({"mode": "lookahead", "window": 3}, JacobiDrafter),
        ({"mode": "lookahead"}, JacobiDrafter),
    ],
)
def test_modes(model: PreTrainedModel, config: dict[str, Any], kind: type) -> None:
    assert type(made(model, **config)) is kind


def test_the_budget_is_the_one_given_else_fits_the_device(model: PreTrainedModel) -> None:
    accelerated = copy.deepcopy(model).to("meta")  # a device that is no CPU
    assert (blend(model).budget, blend(accelerated).budget) == (HOST_BUDGET, ACCELERATOR_BUDGET)
    assert (blend(model, budget=1).budget, blend(accelerated, budget=99).budget) == (1, 99)
    assert (HOST_BUDGET, ACCELERATOR_BUDGET) == (48, 128)


def test_steps_are_chosen_unless_all_of_them_take_the_whole_budget(model: PreTrainedModel) -> None:
    """Calls on one model share what its steps cost."""
    one, other = blend(model), blend(model, budget=9)
    assert isinstance(one.pace, Pace)
    assert isinstance(other.pace, Pace)
    assert one.pace is not other.pace
    assert one.pace._shared is other.pace._shared is shared_cost(model)
    assert [drafter.pace.begin([9], [drafter.pace.start()]) for drafter in (one, other)] == [HOST_BUDGET, 9]
    assert not blend(model, adapt=False).pace.adapts


def test_rows_share_a_step_as_the_forward_carries_them(model: PreTrainedModel) -> None:
    for packed, sharing in ((False, PADDED), (True, PACKED)):
        for settings in (LookaheadConfig().settled(), LookaheadConfig(mode="auto", budget=9).settled()):
            drafter = drafter_for(model, settings, packed=packed)
            assert isinstance(drafter, BlendDrafter)
            assert drafter.pace.sharing is pace_for(model, settings, packed=packed).sharing is sharing
    assert pace_for(model, LookaheadConfig(adapt=False).settled(), packed=True).sharing is PADDED


@pytest.mark.compat
@pytest.mark.usefixtures("short_texts")
def test_a_warm_table_is_used_where_there_is_one_and_never_computed(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(warm, "compute", lambda *args, **kwargs: pytest.fail("computed"))
        assert blend(model).warm is None
    table = warm.warm_up(model)
    one, other = blend(model).warm, blend(model).warm
    assert one is not None
    assert other is not None
    assert one(1.3) is other(1.3) is backoff(table, 1.3)
    assert one(1.0) is backoff(table, 1.0)


def test_without_a_tenant_every_request_gets_a_pool_of_its_own(model: PreTrainedModel) -> None:
    drafter = blend(model)
    assert drafter.pool(None) is not drafter.pool(None)
    assert len(drafter.pool(None).table) == 0
    assert drafter.pool(None).table.capacity == CAPACITY
    assert blend(model, pool_size=7).pool(None).table.capacity == 7


def test_machine_code_is_loaded_for_the_first_request_that_drafts(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before its prompt is read, whose memory it would add to; and not for drafts that need none of it."""
    begun: list[int] = []
    monkeypatch.setattr(compiling, "begin", lambda: begun.append(1))
    made(model, mode="lookahead").start(Request(0, [0, 1], 2, 8))
    drafter = blend(model)
    assert not begun
    drafter.start(Request(0, [0, 1], 2, 8))
    assert begun


def test_a_tenants_requests_share_its_pool(model: PreTrainedModel) -> None:
    one, other = blend(model, tenant="one", pool_size=7), blend(model, tenant="other")
    assert one.pool(None) is blend(model, tenant="one", pool_size=7).pool(None) is shared_pool(model, "one")
    assert one.pool(None).table.capacity == 7
    assert one.pool("other") is other.pool(None)  # a request's own tenant goes before the settings' one
    assert other.pool(None) is not one.pool(None)
    assert blend(SimpleNamespaceModel(model), tenant="one", adapt=False).pool(None) is not one.pool(None)


class SimpleNamespaceModel(SimpleNamespace):
    """Another model, as far as pools can see."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(config=model.config, device=model.device)

    __hash__ = object.__hash__
