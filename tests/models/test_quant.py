"""Quantised loading: what is refused and when, and that lookahead runs on what comes out, where the packages are."""

import importlib
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from families import BY_NAME
from tiny import tiny_model
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import lade
from lade.facts.precision import is_quantised
from lade.measure.audit import parting
from lade.models import load
from lade.models.quant import QUANTS, check_quant, check_quantised, quantised_arguments
from lade.models.shipped import FOLDER, STORIES

CPU = torch.device("cpu")
HERE = [name for name, row in QUANTS.items() if "cpu" in row.devices]
WINDOW = lade.LookaheadConfig(mode="lookahead", window=5, ngram=4, pool_from_prompt=True)
quant_of_loading = importlib.import_module("lade.models.quant")  # `lade.models.load` is a function


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise AssertionError("a file was read")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", fails)


# Refused before any work


@pytest.mark.parametrize("name", ["int3", "NF4", "", 4])
def test_unknown_ways(name: object, no_reading: None) -> None:
    with pytest.raises(ValueError, match=r"quant must be one of nf4, int8, torchao-int8, int4, or None, got "):
        load(quant=name)  # type: ignore[arg-type]


def test_ways_that_a_device_has_not(no_reading: None) -> None:
    with pytest.raises(
        ValueError, match="quant must be one of nf4, int8, torchao-int8, or None on device='cpu', got 'int4'"
    ):
        load(quant="int4", device="cpu")
    with pytest.raises(ValueError, match="quant must be None on device='mps', got 'nf4'"):
        check_quant("nf4", torch.device("mps"))


@pytest.mark.parametrize("name", HERE)
def test_missing_packages(name: str, no_reading: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quant_of_loading, "find_spec", lambda package: None if package != "accelerate" else object())
    needed = rf"quant='{name}' needs {QUANTS[name].package}: pip install 'lade-decoding\[quant\]'"
    with pytest.raises(ImportError, match=needed):
        load(quant=name)


@pytest.mark.parametrize("name", QUANTS)
def test_precisions_that_kernels_have_not(name: str) -> None:
    with pytest.raises(ValueError, match=rf"dtype must be .* with quant='{name}', got 'float64'"):
        quantised_arguments(name, SimpleNamespace(), torch.float64, CPU)


def test_quantised_checkpoints() -> None:
    config = SimpleNamespace(quantization_config={"bits": 4})
    with pytest.raises(ValueError, match="quant must be None for a checkpoint that is quantised already, got 'nf4'"):
        quantised_arguments("nf4", config, torch.float32, CPU)


# Refused behind it


def test_nothing_was_quantised() -> None:
    model = tiny_model(BY_NAME["llama"])
    assert not is_quantised(model)
    with pytest.raises(ValueError, match="quant='int4' on device='cpu': no weight of this model"):
        check_quantised(model, "int4")


class Refusing(LlamaForCausalLM):
    """A model whose kernels fail, as those of bitsandbytes do for sizes that are no multiple of 32."""

    def forward(self, *args: object, **kwargs: object) -> None:
        raise AssertionError("N must be divisible by block_n\nand more")


def test_kernels_refuse_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quant_of_loading, "is_quantised", lambda model: True)
    model = Refusing(tiny_model(BY_NAME["llama"]).config)
    with pytest.raises(
        ValueError, match=r"on device='cpu': its kernels do not support this model \(N must be.*block_n\)"
    ):
        check_quantised(model, "nf4")


# Loaded


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose sizes the kernels take, with the tokenizer that ships."""
    place = tmp_path_factory.mktemp("wide")
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=512))
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.2)
    model.save_pretrained(place)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FOLDER / STORIES / name, place)
    return place


def installed(name: str) -> None:
    package = QUANTS[name].package
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed (extra quant)")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*will be cast from:UserWarning")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", HERE)
def test_lookahead_on_quantised_weights(name: str, dtype: str, folder: Path) -> None:
    """Branched, and parting from plain decoding where rounding explains it alone."""
    installed(name)
    model, _ = load(folder, quant=name, dtype=dtype)
    assert is_quantised(model)
    assert model.dtype is getattr(torch, dtype)
    ids = torch.tensor([[1, 403, 407, 261, 378, 403, 407]])
    kwargs = {"do_sample": False, "max_new_tokens": 48, "eos_token_id": None, "pad_token_id": 0}
    plain = model.generate(ids, **kwargs)[0]
    ours = lade.generate(model, ids, config=WINDOW, **kwargs)[0]
    stats = lade.last_stats()
    assert stats.fallback is None
    assert stats.mean_forward_tokens > 4
    found = parting(model, plain, ours, ids.shape[1])
    assert found is None or found.explained


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sizes_that_no_kernel_takes() -> None:
    installed("nf4")
    with pytest.raises(ValueError, match="quant='nf4' on device='cpu': its kernels do not support this model"):
        load(FOLDER / STORIES, quant="nf4")
