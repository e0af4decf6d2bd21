"""Models that read images too are loaded by their own class, and decode text as others do."""

from pathlib import Path

import pytest
from multimodal import BY_TYPE, image_model, text
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoTokenizer,
    Florence2Config,
    Gemma3Config,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2VLConfig,
    T5Config,
)

import lade
from lade.models import load
from lade.models.dtype import weights
from lade.models.loader import loader_for
from lade.models.shipped import FOLDER, STORIES


@pytest.mark.parametrize(
    ("kind", "loader"),
    [
        (LlamaConfig, AutoModelForCausalLM),
        (Gemma3Config, AutoModelForCausalLM),
        (Qwen2VLConfig, AutoModelForMultimodalLM),
        (T5Config, AutoModelForCausalLM),  # which refuses it
        (Florence2Config, AutoModelForCausalLM),  # as it does other encoder-decoders
    ],
    ids=lambda kind: kind.__name__,
)
def test_loaders(kind: type[PreTrainedConfig], loader: type) -> None:
    assert loader_for(kind()) is loader


@pytest.mark.parametrize("name", ["llava", "qwen2_vl"])
def test_a_folder(name: str, tmp_path: Path) -> None:
    own = image_model(BY_TYPE[name])
    own.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(FOLDER / STORIES).save_pretrained(tmp_path)
    model, _ = load(tmp_path, pack=True)
    assert type(model) is type(own)
    assert weights(model.config) == own.num_parameters()
    kwargs = text(9) | {"max_new_tokens": 20, "do_sample": False}
    assert lade.generate(model, **kwargs).tolist() == own.generate(**kwargs).tolist()
    assert lade.last_stats().fallback is None
