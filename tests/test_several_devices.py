"""Several processes that share a model: the same text as one process, on all of them."""

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from families import BY_NAME
from forks import needs_fork
from sidebyside import assert_falls_back
from tiny import own_llama, tiny_model, words
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

import lade
from lade.facts.fingerprint import configuration_key, fingerprint
from lade.memory.warm.file import table_file
from lade.pace.costfile import cost_file

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 14}
SAMPLED: dict[str, Any] = {"do_sample": True, "max_new_tokens": 14, "top_k": 0}
needs_gloo = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo")
AUTO = lade.LookaheadConfig(mode="auto", timeout=30)
ADAPTS = "auto that adapts"  # by measured times, so that it may draft nothing
PAPER = lade.LookaheadConfig(mode="lookahead", timeout=30)


def sharded(folder: Path) -> PreTrainedModel:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # transformers' own
        return AutoModelForCausalLM.from_pretrained(folder / "model", tp_plan="auto", dtype=torch.float32).eval()


def ways() -> dict[str, dict[str, Any]]:
    """Ways to draft: arguments of `lade.generate`."""
    draft = own_llama()
    return {
        "auto": {"config": replace(AUTO, adapt=False)},
        ADAPTS: {"config": AUTO},
        "lookahead": {"config": PAPER},
        "draft": {"method": lade.DraftModel(draft, tokens=4)},
        "likeliest": {"method": lade.DraftModel(draft, tokens=4, likeliest=True)},
        "self": {"method": lade.self_speculative(((1,), ()), tokens=3, adapt="fixed")},
    }


def texts(model: PreTrainedModel, way: dict[str, Any] | None, seed: int) -> list[Any]:
    """Greedy and sampled texts of one prompt and of three of unequal lengths."""
    found = []
    for lengths in ((9,), (4, 11, 7)):
        for settings in (GREEDY, SAMPLED):
            torch.manual_seed(seed)
            inputs = words(*lengths) | settings
            text = model.generate(**inputs) if way is None else lade.generate(model, **inputs, **way)
            found.append(text.tolist())
    return found


@needs_fork
@needs_gloo
@pytest.mark.parametrize("names", [("auto", ADAPTS), pytest.param(tuple(ways()), marks=pytest.mark.real)], ids=len)
def test_tensor_parallel(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Rank 1 has another seed: the noise is that of rank 0."""
    whole = own_llama()
    whole.save_pretrained(tmp_path / "model")

    def work(rank: int) -> dict[str, Any]:
        model = sharded(tmp_path)
        found: dict[str, Any] = {}
        for name in names:
            found[name] = texts(model, ways()[name], seed=5 + rank)
            assert lade.last_stats().fallback is None
            assert name == ADAPTS or lade.last_stats().accepted_tokens > 0
        return found | {"fingerprint": fingerprint(model), "key": configuration_key(model)}

    one, other = ranks.run(tmp_path / "run", 2, work)
    assert one == other
    assert one["fingerprint"] == fingerprint(whole)
    assert one["key"] == configuration_key(whole)
    plain = texts(whole, None, seed=5)
    for name in names:
        exact = name not in ("draft", "self")  # else the distribution of samples alone is that of plain decoding
        assert one[name][:: 1 if exact else 2] == plain[:: 1 if exact else 2], name


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("size", "heads"), [(3, "num_attention_heads=4"), (4, "num_key_value_heads=2")])
def test_heads_that_cannot_be_divided(monkeypatch: pytest.MonkeyPatch, size: int, heads: str) -> None:
    """Before any forward; transformers' own error would name a shape."""
    model = own_llama()
    model._tp_size = size
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: size)
    monkeypatch.setattr("lade.distributed.processes.one_call", lambda timeout: pytest.fail("work has begun"))
    with pytest.raises(ValueError, match=f"must be a multiple of its {size} processes, got {heads}$"):
        lade.generate(model, **words(9), **GREEDY)


@pytest.mark.real
@needs_fork
@needs_gloo
@pytest.mark.usefixtures("short_texts")
def test_files_of_a_sharded_model(table_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One warm table and one file of costs for all ranks; the table is that of the whole model."""
    monkeypatch.setattr("lade.pace.shared.FIRST_SAVE", 4)
    whole = own_llama()
    whole.save_pretrained(tmp_path / "model")

    def work(rank: int) -> Any:
        model = sharded(tmp_path)
        lade.warm_up(model)
        for _ in range(3):
            lade.generate(model, **words(9), do_sample=False, max_new_tokens=96, config=AUTO)
        return lade.last_stats().warm_table, str(cost_file(model))

    one, other = ranks.run(tmp_path / "run", 2, work)
    files = sorted(path.name for path in table_folder.iterdir() if path.suffix == ".safetensors")
    assert files == sorted([table_file(whole).name, Path(one[1]).name])
    assert one[1] == other[1] != str(cost_file(whole))
    assert one[0] == lade.warm_up(whole).digest


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


@pytest.mark.parametrize(
    ("mark", "reason"),
    [
        ({"_tp_size": 2}, "sharded over 2 processes (tp_plan) of 1"),
        ({"_device_mesh": "a mesh"}, "spread over several processes"),
    ],
    ids=str,
)
def test_marks_of_transformers(mark: dict[str, Any], reason: str) -> None:
    model = llama()
    for name, value in mark.items():
        setattr(model, name, value)
    assert_falls_back(model, lambda: words(9) | GREEDY, reason)


@pytest.mark.usefixtures("group")
def test_fingerprints_of_sharded_weights() -> None:
    for ask in (configuration_key, fingerprint):
        assert ask(spread()) == ask(llama())
