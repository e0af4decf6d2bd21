"""The dtype of a model where none is asked for: float32 where torch is slow in the checkpoint's own, if it fits."""

import copy
import importlib
from pathlib import Path

import pytest
import torch
from families import BY_NAME
from tiny import tiny_model
from transformers import AutoTokenizer, LlamaForCausalLM

from lade.applications.options import load_model
from lade.facts import memory
from lade.models import load
from lade.models.dtype import PART, default_dtype
from lade.models.shipped import DRAFT, FOLDER, STORIES

HALVES = ("bfloat16", "float16")


@pytest.fixture(params=HALVES)
def half(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with a checkpoint in half precision, named for its dtype."""
    return saved(tmp_path / request.param, getattr(torch, request.param))


def saved(folder: Path, dtype: torch.dtype) -> Path:
    copy.deepcopy(tiny_model(BY_NAME["llama"], "sdpa")).to(dtype).save_pretrained(folder)
    AutoTokenizer.from_pretrained(FOLDER / STORIES).save_pretrained(folder)
    return folder


def size(folder: Path) -> int:
    """Bytes of the weights in float32."""
    return 4 * sum(weight.numel() for weight in LlamaForCausalLM.from_pretrained(folder).parameters())


@pytest.mark.compat
@pytest.mark.usefixtures("slow_products")
def test_half_precision_becomes_float32(half: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = getattr(torch, half.name)
    model, _ = load(half)
    assert model.dtype is model.config.dtype is torch.float32
    kept, _ = load(half, dtype=own)
    assert kept.dtype is own
    for name, weight in kept.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight.float()), name
    (record,) = caplog.records  # none for the dtype that was asked for
    assert record.name == "lade.models.dtype"
    assert record.message == (
        f"lade: {half.name} is loaded in float32, as torch is slow on this CPU in {half.name}, the checkpoint's dtype; "
        f'dtype="{half.name}" or --dtype {half.name} keeps it'
    )


@pytest.mark.usefixtures("slow_products")
def test_it_is_said_once_per_model(half: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = saved(tmp_path / "another", torch.bfloat16)
    for folder in (half, half, other, half):
        load(folder)
    assert [record.message.split()[1] for record in caplog.records] == [half.name, "another"]


def test_where_torch_is_fast_nothing_changes(half: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(half)[0].dtype is getattr(torch, half.name)
    assert not caplog.records


@pytest.mark.usefixtures("slow_products")
def test_other_checkpoints_keep_their_dtype(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for dtype in (torch.float32, torch.float64):
        assert load(saved(tmp_path / str(dtype), dtype))[0].dtype is dtype
    assert load(STORIES)[0].dtype is torch.float32
    assert not caplog.records


@pytest.mark.usefixtures("slow_products")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_a_dtype_that_is_asked_for_is_taken(dtype: str, half: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(half, dtype=dtype)[0].dtype is getattr(torch, dtype)
    assert not caplog.records


@pytest.mark.usefixtures("slow_products")
@pytest.mark.parametrize(("which", "part"), [("total", PART), ("available", 1)])
def test_weights_that_do_not_fit_keep_their_dtype(
    which: str, part: int, half: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = part * size(half)
    monkeypatch.setattr(memory, which, lambda: needed - 1)
    assert load(half)[0].dtype is getattr(torch, half.name)
    (record,) = caplog.records
    assert record.message.startswith(f"lade: {half.name} is loaded in {half.name}, the checkpoint's dtype, though ")
    assert record.message.endswith('; dtype="float32" or --dtype float32 takes it nevertheless')
    monkeypatch.setattr(memory, which, lambda: needed)
    assert load(half)[0].dtype is torch.float32


@pytest.mark.usefixtures("slow_products")
def test_quantised_checkpoints_and_silent_ones_keep_their_dtype(half: Path) -> None:
    """What is not in the configuration is not known."""
    config = half / "config.json"
    written = config.read_text()
    config.write_text(written.replace("{", '{"quantization_config": {"quant_method": "bitsandbytes"},', 1))
    assert default_dtype(str(half)) is None
    config.write_text(written.replace(f'"dtype": "{half.name}",', ""))
    assert default_dtype(str(half)) is None
    config.write_text(written)
    assert default_dtype(str(half)) is torch.float32


@pytest.mark.usefixtures("slow_products")
def test_other_devices_and_quantised_loads_are_not_asked(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_asking(*_: object) -> None:
        raise AssertionError("the rule was asked")

    def loaded(*arguments: object) -> LlamaForCausalLM:
        assert arguments[-3] is None  # no dtype
        return tiny_model(BY_NAME["llama"], "sdpa")

    module = importlib.import_module("lade.models.load")  # lade.models has a function of this name
    monkeypatch.setattr(module, "default_dtype", no_asking)
    monkeypatch.setattr(module, "as_device", torch.device)
    monkeypatch.setattr(module, "check_quant", lambda *_: None)
    monkeypatch.setattr(module, "_plain", loaded)
    monkeypatch.setattr(module, "_quantised", loaded)
    load(half, device="cuda")
    load(half, quant="int8")
    with pytest.raises(AssertionError, match="the rule was asked"):
        load(half)


@pytest.mark.usefixtures("slow_products")
def test_commands_follow_the_rule() -> None:
    assert load_model(DRAFT, dtype=None, device="cpu")[0].dtype is torch.float32
    assert load_model(DRAFT, dtype="bfloat16", device="cpu")[0].dtype is torch.bfloat16


@pytest.mark.parametrize("name", [DRAFT, STORIES])
def test_models_that_ship_keep_their_dtype_where_torch_is_fast(name: str) -> None:
    assert load(name)[0].dtype is {DRAFT: torch.bfloat16, STORIES: torch.float32}[name]
