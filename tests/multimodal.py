"""Tiny random models that read images or sound with the prompt, and prompts for them. Knows nothing of lade."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from families import HEAD8, LLAMA, PAD, SLIDING_THEN_FULL, WINDOW
from tiny import draw_weights, spread_logits
from torch import Tensor
from transformers import AutoConfig, AutoModelForMultimodalLM, PreTrainedModel

IMAGE, START, END = 60, 59, 58  # what stands for a patch of an image, and around them
WORDS = 3, 58  # tokens of text: first, end (exclusive)

TEXT = LLAMA | HEAD8
ROPE_3D = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}}
TOWER = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
PATCHES = TOWER | {"image_size": 16, "patch_size": 8}
QWEN_TOWER = {
    "depth": 2,
    "embed_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 32,
    "out_hidden_size": 32,
    "num_heads": 2,
    "mlp_ratio": 2,
    "patch_size": 4,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [1],
    "window_size": 16,
}
QWEN_IDS = {"image_token_id": IMAGE, "video_token_id": 61, "vision_start_token_id": START, "vision_end_token_id": END}
GLM_IDS = {
    "image_token_id": IMAGE,
    "video_token_id": 61,
    "image_start_token_id": START,
    "image_end_token_id": END,
    "video_start_token_id": 62,
    "video_end_token_id": 63,
}


def pixels(*shape: int) -> Callable[[int], dict[str, Tensor]]:
    """seed -> pixel values of this shape."""
    return lambda seed: {"pixel_values": torch.randn(shape, generator=torch.Generator().manual_seed(seed))}


def grid(seed: int) -> dict[str, Tensor]:
    """An image of 4 x 6 patches, of which 2 x 2 are one token."""
    return pixels(24, 3 * 2 * 4 * 4)(seed) | {"image_grid_thw": torch.tensor([[1, 4, 6]])}


def sized(seed: int) -> dict[str, Tensor]:
    return pixels(1, 3, 16, 16)(seed) | {"image_sizes": torch.tensor([[16, 16]])}


def sound(seed: int) -> dict[str, Tensor]:
    features = pixels(1, 8, 16)(seed)["pixel_values"]
    return {"input_features": features, "feature_attention_mask": torch.ones(1, 16, dtype=torch.long)}


@dataclass(frozen=True)
class Kind:
    """A family that reads more than text.

    Attributes:
        tokens: of an image in the prompt.
        image: seed -> the inputs that hold one image.
        types: the input that tells tokens of images from text, if the family has one.
    """

    model_type: str
    config: dict[str, Any] = field(hash=False)
    tokens: int
    image: Callable[[int], dict[str, Tensor]]
    types: str | None = None


def _clip(text: str, **others: Any) -> dict[str, Any]:
    return {
        "text_config": TEXT | {"model_type": text},
        "vision_config": PATCHES | {"model_type": "clip_vision_model"},
        "image_token_id": IMAGE,
    } | others


KINDS = (
    Kind("llava", _clip("llama", image_token_index=IMAGE), 4, pixels(1, 3, 16, 16)),
    Kind(
        "gemma3",
        {
            "text_config": TEXT | {"layer_types": SLIDING_THEN_FULL, "sliding_window": WINDOW},
            "vision_config": PATCHES,
            "image_token_id": IMAGE,
            "mm_tokens_per_image": 4,
        },
        4,
        pixels(1, 3, 16, 16),
        "token_type_ids",
    ),
    Kind(
        "mistral3",
        {
            "text_config": TEXT | {"model_type": "mistral"},
            "vision_config": TOWER | HEAD8 | {"model_type": "pixtral", "image_size": 16, "patch_size": 4},
            "image_token_id": IMAGE,
            "vision_feature_layer": -1,
        },
        4,
        sized,
    ),
    Kind(
        "idefics3",
        {
            "text_config": TEXT | {"model_type": "llama"},
            "vision_config": PATCHES,
            "image_token_id": IMAGE,
            "scale_factor": 2,
            "pad_token_id": PAD,
        },
        1,
        pixels(1, 1, 3, 16, 16),
    ),
    Kind(
        "internvl",
        {
            "text_config": TEXT | {"model_type": "qwen2"},
            "vision_config": TOWER | {"image_size": [16, 16], "patch_size": [4, 4]},
            "image_token_id": IMAGE,
            "vision_feature_layer": -1,
        },
        4,
        pixels(1, 3, 16, 16),
    ),
    *(
        Kind(
            name,
            {"text_config": TEXT | ROPE_3D, "vision_config": QWEN_TOWER} | QWEN_IDS,
            6,
            grid,
            "mm_token_type_ids",
        )
        for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
    ),
    Kind(
        "glm4v",
        {
            "text_config": TEXT | ROPE_3D,
            "vision_config": {
                "depth": 2,
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_heads": 2,
                "image_size": 16,
                "patch_size": 4,
                "out_hidden_size": 32,
            },
        }
        | GLM_IDS,
        6,
        grid,
        "mm_token_type_ids",
    ),
    Kind(
        "qwen2_audio",
        {
            "text_config": TEXT | {"model_type": "qwen2"},
            "audio_config": {
                "num_mel_bins": 8,
                "d_model": 16,
                "encoder_layers": 2,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 32,
                "max_source_positions": 8,
            },
            "audio_token_id": IMAGE,
            "audio_token_index": IMAGE,
        },
        4,
        sound,
    ),
)
FOUR_AXES = Kind(  # all of them rotate
    "hunyuan_vl",
    {
        "text_config": TEXT | {"rope_parameters": {"rope_type": "default", "xdrope_section": [1, 1, 1, 1]}},
        "vision_config": TOWER | {"image_size": 16, "patch_size": 4, "out_hidden_size": 32},
    }
    | QWEN_IDS,
    6,
    grid,
)
OWN_POSITIONS = Kind(  # drops the positions that it is given
    "exaone4_5",
    {
        "text_config": TEXT | {"model_type": "exaone4", "layer_types": ["full_attention"] * 2},
        "vision_config": QWEN_TOWER,
    }
    | QWEN_IDS,
    6,
    grid,
)
OWN_MASKS = Kind(  # all of a prompt sees all of it
    "paligemma",
    {
        "text_config": TEXT | {"model_type": "gemma", "hidden_activation": "gelu_pytorch_tanh"},
        "vision_config": PATCHES | {"model_type": "siglip_vision_model", "vision_use_head": False},
        "image_token_id": IMAGE,
        "projection_dim": 32,
    },
    4,
    pixels(1, 3, 16, 16),
)
BY_TYPE = {kind.model_type: kind for kind in KINDS}


@cache
def image_model(kind: Kind, attention: str | None = None) -> PreTrainedModel:
    """The family's model, built once per session; its texts end by length alone."""
    how = {} if attention is None else {"attn_implementation": attention}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind.model_type, **kind.config)
        model = AutoModelForMultimodalLM.from_config(config, **how).eval()
        draw_weights(model)
        spread_logits(model)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD
    return model


def text(*lengths: int) -> dict[str, Tensor]:
    """A left-padded batch of prompts of random text alone."""
    generator = torch.Generator().manual_seed(0)
    return _padded([torch.randint(*WORDS, (length,), generator=generator).tolist() for length in lengths])


def _padded(rows: list[list[int]]) -> dict[str, Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([[PAD] * (width - len(row)) + row for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def image_prompt(kind: Kind, *lengths: int, seed: int = 0) -> dict[str, Tensor]:
    """A left-padded batch of prompts, each an image between random text, as keyword arguments of `generate`.

    Args:
        lengths: tokens of text behind the image, per row.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length in lengths:
        words = torch.randint(*WORDS, (length + 2,), generator=generator).tolist()
        rows.append([*words[:2], START, *[IMAGE] * kind.tokens, END, *words[2:]])
    images = [kind.image(seed + row) for row in range(len(rows))]
    prompt = _padded(rows) | {name: torch.cat([image[name] for image in images]) for name in images[0]}
    if kind.types is not None:
        prompt[kind.types] = (prompt["input_ids"] == IMAGE).long()
    return prompt
