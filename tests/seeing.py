"""A tiny random LLaVA with its processor, as a folder, and images as requests hold them."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from multimodal import PATCHES, TEXT
from PIL import Image
from tiny import draw_weights, spread_logits
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForMultimodalLM, LlavaProcessor, PreTrainedTokenizerFast

NAME = "llava"
SPECIAL = ("<pad>", "<s>", "</s>", "<image>")
IMAGE_ID = SPECIAL.index("<image>")
IMAGE_TOKENS = 4  # 16 x 16 pixels in patches of 8 x 8
TEMPLATE = """{% for message in messages %}<s>{{ message['role'] }}: {% if message['content'] is string %}\
{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}\
{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


def tokenizer() -> PreTrainedTokenizerFast:
    """A token per character, so that every token can be read in a text: those of ASCII, space and line end."""
    letters = [*SPECIAL, *map(chr, range(33, 127)), "Ġ", "Ċ"]
    found = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    names = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL, strict=False))
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=found, chat_template=TEMPLATE, model_input_names=inputs, **names)


def save_llava(folder: Path) -> Path:
    """Write model, tokenizer and processor; returns the folder."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil  # older releases have none

    own = tokenizer()
    text = TEXT | {"model_type": "llama", "vocab_size": len(own), "max_position_embeddings": 1024}
    images = {"image_token_id": IMAGE_ID, "image_token_index": IMAGE_ID}
    vision = PATCHES | {"model_type": "clip_vision_model"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model("llava", text_config=text, vision_config=vision, **images)
        model = AutoModelForMultimodalLM.from_config(config).eval()
        draw_weights(model)
        spread_logits(model)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 2, 0
    model.save_pretrained(folder)
    size = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    rest = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    LlavaProcessor(CLIPImageProcessorPil(**size), own, chat_template=TEMPLATE, **rest).save_pretrained(folder)
    return folder


def picture(seed: int = 0, size: tuple[int, int] = (20, 12)) -> Image.Image:
    """Random pixels."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 256, (size[1], size[0], 3), generator=generator, dtype=torch.uint8)
    return Image.fromarray(values.numpy())


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> str:
    """An image's file in base64."""
    file = BytesIO()
    image.save(file, kind, **options)
    return base64.b64encode(file.getvalue()).decode()


def data_url(image: Image.Image) -> str:
    return f"data:image/png;base64,{encoded(image)}"
