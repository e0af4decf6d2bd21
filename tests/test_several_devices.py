"""A model that several processes share decodes plainly: each would choose the sizes of its own drafts."""

import copy
import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from families import BY_NAME
from forks import beside, needs_fork, run_in_a_child
from sidebyside import assert_falls_back
from tiny import tiny_model, words
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

import lade
from lade.facts.fingerprint import configuration_key, fingerprint

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 16}


def shared_by_two(folder: Path, rank: int) -> None:
    """One of two processes; writes what both ways of decoding give, and what lade warns of."""
    known = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ |= known | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # transformers' own
        model = AutoModelForCausalLM.from_pretrained(folder / "model", tp_plan="auto", dtype=torch.float32).eval()
    kwargs = {"input_ids": torch.tensor([[5, 9, 33, 7]])} | GREEDY
    plain = model.generate(**kwargs).tolist()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = lade.generate(model, **kwargs).tolist()
    said = [str(each.message) for each in caught if each.category is lade.FallbackWarning]
    (folder / f"{rank}.json").write_text(json.dumps({"plain": plain, "ours": ours, "said": said}))
    torch.distributed.destroy_process_group()


@pytest.fixture
def group(tmp_path: Path) -> Any:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def llama() -> PreTrainedModel:
    return copy.deepcopy(tiny_model(BY_NAME["llama"], "sdpa"))


def spread() -> PreTrainedModel:
    """One weight is a `DTensor`, as after `tp_plan` and `fully_shard`."""
    model = llama()
    mesh = init_device_mesh("cpu", (1,))
    for layer in model.model.layers:
        weight = distribute_tensor(layer.mlp.down_proj.weight.data, mesh, [Replicate()])
        layer.mlp.down_proj.weight = torch.nn.Parameter(weight)
    return model


@pytest.mark.usefixtures("group")
def test_weights_that_are_spread() -> None:
    model = spread()
    assert isinstance(model.model.layers[0].mlp.down_proj.weight, DTensor)

    with (
        pytest.warns(lade.FallbackWarning, match="weights are spread over several processes"),
        pytest.raises(RuntimeError, match="mixed torch"),
    ):  # plain decoding's own error: nothing here lets a DTensor meet a tensor
        lade.generate(model, **words(9), **GREEDY, config=lade.LookaheadConfig(mode="auto"))


@pytest.mark.usefixtures("group")
def test_a_group_alone_is_no_reason() -> None:
    lade.generate(llama(), **words(9), **GREEDY)
    assert lade.last_stats().fallback is None


@pytest.mark.parametrize("mark", [{"_tp_size": 2}, {"_device_mesh": "a mesh"}], ids=str)
def test_marks_of_transformers(mark: dict[str, Any]) -> None:
    model = llama()
    for name, value in mark.items():
        setattr(model, name, value)
    assert_falls_back(model, lambda: words(9) | GREEDY, "spread over several processes (tp_plan)")


@pytest.mark.usefixtures("group")
def test_fingerprints_of_spread_weights() -> None:
    """`warm_up` and the bench ask for one before any call."""
    model = spread()
    for ask in (configuration_key, fingerprint):
        with pytest.raises(ValueError, match="model must hold whole weights, got some spread over several processes"):
            ask(model)


@needs_fork
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo")
def test_two_processes(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "model")

    def both() -> None:
        with beside(lambda: shared_by_two(tmp_path, 1)):
            shared_by_two(tmp_path, 0)

    done = run_in_a_child(both)
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for each in found:
        assert each["ours"] == each["plain"] == found[0]["plain"]
        assert len(each["said"]) == 1
        assert "spread over several processes" in each["said"][0]
