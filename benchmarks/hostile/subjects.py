"""The tested models, by name: the tests' families, edge cases of them, transformers' list, trained models.

Every model is built once per process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from families import BY_NAME, EAGER, HEAD8, LLAMA, LOCAL_MOE, VOCAB, Family
from multimodal import KINDS, WORDS, image_model, image_prompt
from tiny import tiny_model, words
from transformers import PreTrainedModel
from unbranchable import UNBRANCHABLE

import lade.models
from hostile import zoo

DTYPES = {"float32": torch.float32, "float64": torch.float64}
TRAINED = ("stories260K", "lade-code-8M-draft")
FEW_POSITIONS = 40  # of a learned position table
EXTRA = 16  # rows of the head beyond the embedding
NEVER = (4, 10, 14, 20, 33, 37, 41, 47, 50, 58)  # token ids that plain decoding never chooses


class NotBuiltError(Exception):
    """A model that cannot be built here; the message says why."""


@dataclass(frozen=True)
class Edge:
    """An edge case of a family's configuration or weights.

    Attributes:
        touch: changes the built model.
        forbids: token ids that a call must suppress for plain decoding to work.
        limit: positions for prompt and new tokens together; 0: no limit.
    """

    family: Family
    touch: Callable[[PreTrainedModel], None] | None = None
    forbids: tuple[int, ...] = ()
    limit: int = 0


def _changed(base: str, name: str, **config: Any) -> Family:
    family = BY_NAME[base]
    return replace(family, name=name, config=family.config | config)


@torch.no_grad()
def _widen_head(model: PreTrainedModel) -> None:
    head = model.get_output_embeddings()
    wide = torch.nn.Linear(head.in_features, head.out_features + EXTRA, bias=False)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(EXTRA, head.in_features, generator=generator) * head.weight.std() * 2
    wide.weight.copy_(torch.cat([head.weight, drawn]))
    model.set_output_embeddings(wide.to(head.weight.dtype))


def _widen_head_and_size(model: PreTrainedModel) -> None:
    _widen_head(model)
    model.config.vocab_size += EXTRA


@torch.no_grad()
def _minus_infinity(model: PreTrainedModel) -> None:
    head = model.get_output_embeddings()
    if head.bias is None:
        head.bias = torch.nn.Parameter(torch.zeros(head.out_features, dtype=head.weight.dtype))
    head.bias[list(NEVER)] = -torch.inf


def _poison(value: float) -> Callable[[PreTrainedModel], None]:
    @torch.no_grad()
    def touch(model: PreTrainedModel) -> None:
        model.get_input_embeddings().weight[list(NEVER)] = value

    return touch


def _temperature(name: str, floor: int, scale: float) -> Edge:
    tuned = {"attn_temperature_tuning": True, "floor_scale": floor, "attn_scale": scale}
    return Edge(_changed("llama4", name, **tuned))


def _windows() -> dict[str, Edge]:
    bases = ("mistral-sliding", "gemma3", "gpt_oss", "olmo3", "qwen2-sliding", "phi3-sliding")
    sizes = (1, 2, 3)
    return {
        f"{base}/window{size}": Edge(_changed(base, f"{base}/window{size}", sliding_window=size))
        for base in bases
        for size in sizes
    }


def _short() -> dict[str, Edge]:
    ends = {"gpt2": "n_positions", "gpt_bigcode": "n_positions"}
    ends |= dict.fromkeys(("opt", "biogpt", "gpt_neo"), "max_position_embeddings")
    edges = {
        f"{base}/short": Edge(_changed(base, f"{base}/short", **{name: FEW_POSITIONS}), limit=FEW_POSITIONS)
        for base, name in ends.items()
    }
    edges["big_bird/short"] = Edge(
        Family("big_bird/short", "big_bird", zoo.small("big_bird", max_position_embeddings=FEW_POSITIONS), EAGER),
        limit=FEW_POSITIONS,
    )
    return edges


def _edges() -> dict[str, Edge]:
    several = {
        "llama/wide-head": Edge(
            _changed("llama", "llama/wide-head"), _widen_head, forbids=tuple(range(64, 64 + EXTRA))
        ),
        "llama/wide-head-size": Edge(
            _changed("llama", "llama/wide-head-size"), _widen_head_and_size, forbids=tuple(range(64, 64 + EXTRA))
        ),
        "llama/minus-inf": Edge(_changed("llama", "llama/minus-inf"), _minus_infinity),
        "phi/minus-inf": Edge(_changed("phi", "phi/minus-inf"), _minus_infinity),
        "llama/nan": Edge(_changed("llama", "llama/nan"), _poison(torch.nan), forbids=NEVER),
        "mistral/inf": Edge(_changed("mistral", "mistral/inf"), _poison(torch.inf), forbids=NEVER),
        "gpt2/nan": Edge(_changed("gpt2", "gpt2/nan"), _poison(torch.nan), forbids=NEVER),
        "llama/mqa": Edge(_changed("llama", "llama/mqa", num_key_value_heads=1)),
        "qwen3/mqa": Edge(_changed("qwen3", "qwen3/mqa", num_key_value_heads=1)),
        "mistral-sliding/mqa": Edge(_changed("mistral-sliding", "mistral-sliding/mqa", num_key_value_heads=1)),
        "llama/tied": Edge(_changed("llama", "llama/tied", tie_word_embeddings=True)),
        "qwen2/tied": Edge(_changed("qwen2", "qwen2/tied", tie_word_embeddings=True)),
        "llama4/temperature-weak": _temperature("llama4/temperature-weak", 24, 0.1),
        "llama4/temperature": _temperature("llama4/temperature", 24, 2.0),
        "llama4/temperature-short": _temperature("llama4/temperature-short", 7, 1.0),
        "mixtral/small": Edge(
            Family("mixtral/small", "mixtral", LLAMA | HEAD8 | LOCAL_MOE | {"num_hidden_layers": 1}),
        ),
    }
    return several | _windows() | _short()


EDGES = _edges()
FAMILIES = tuple(BY_NAME)
FALLBACKS = {family.name: family for family in UNBRANCHABLE}
SEEING = {f"image:{kind.model_type}": kind for kind in KINDS if kind.model_type != "qwen2_audio"}
LLAVA = "image:llava"
PLACES = tuple(range(WORDS[1], VOCAB))  # token ids that stand for an image, or around one
ZOO = tuple(f"zoo:{name}" for name in zoo.names())


def attentions(name: str) -> tuple[str, ...]:
    """The attention implementations to draw from."""
    family = EDGES[name].family if name in EDGES else BY_NAME.get(name) or FALLBACKS.get(name)
    return family.attention if family is not None else ("eager", "sdpa")


def never_said(name: str) -> tuple[int, ...]:
    """Token ids that the texts of prompts leave out."""
    return PLACES if name in SEEING else EDGES[name].forbids if name in EDGES else ()


def double(name: str) -> bool:
    """Whether transformers runs the model in float64."""
    return name in BY_NAME and BY_NAME[name].float64


@cache
def subject(name: str, attention: str, dtype: str) -> PreTrainedModel:
    """The model, shared: copy it before a change.

    Raises:
        NotBuiltError: with the reason.
    """
    try:
        model = _build(name, attention, DTYPES[dtype])
        with torch.no_grad():
            logits = model(**_inputs(name, model)).logits
    except Exception as error:  # noqa: BLE001 - the reason is what counts
        raise NotBuiltError(
            f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120] if str(error) else ''}"
        ) from None
    if logits.isnan().any() and name not in EDGES:
        raise NotBuiltError("its logits are NaN")
    return model


def _inputs(name: str, model: PreTrainedModel) -> dict[str, Any]:
    """Those of a forward after which transformers has put on the model all the hooks of its own."""
    if name in SEEING:
        return image_prompt(SEEING[name], 9)
    inputs: dict[str, Any] = {"input_ids": words(9)["input_ids"]}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    return inputs


def _build(name: str, attention: str, dtype: torch.dtype) -> PreTrainedModel:
    if name in TRAINED:
        return _trained(name, attention, dtype)
    if name in SEEING:
        return image_model(SEEING[name], attention)
    if name.startswith("zoo:"):
        return _of_the_zoo(name.removeprefix("zoo:"), attention, dtype)
    if name not in EDGES:
        return tiny_model(BY_NAME.get(name) or FALLBACKS[name], attention, dtype)
    edge = EDGES[name]
    model = tiny_model(edge.family, attention, dtype)
    if edge.touch is not None:
        edge.touch(model)
    return model


def _trained(name: str, attention: str, dtype: torch.dtype) -> PreTrainedModel:
    model, _ = lade.models.load(name, attn_implementation=attention, dtype=dtype)
    model.generation_config.eos_token_id = None
    return model


def _of_the_zoo(name: str, attention: str, dtype: torch.dtype) -> PreTrainedModel:
    family = Family(f"zoo:{name}", name, zoo.small(name))
    zoo.check_size(family)
    try:
        return tiny_model(family, attention, dtype)
    except ValueError:
        if attention == "eager":
            raise
        return tiny_model(family, "eager", dtype)


@cache
def tokenizer(name: str) -> Any:
    """The tokenizer of a trained model."""
    return lade.models.load(name)[1]


def all_names() -> dict[str, tuple[str, ...]]:
    """The names of all models, by origin."""
    return {
        "family": FAMILIES,
        "fallback": tuple(FALLBACKS),
        "edge": tuple(EDGES),
        "zoo": ZOO,
        "trained": TRAINED,
        "image": tuple(SEEING),
    }
