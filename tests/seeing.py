"""Tiny random models that read images, with their processors, and images as requests hold them."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from multimodal import BY_TYPE
from PIL import Image
from tiny import draw_weights, spread_logits
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForMultimodalLM,
    Gemma3Processor,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

NAME = "llava"
SPECIAL = ("<pad>", "<s>", "</s>", "<image>")
IMAGE_ID = SPECIAL.index("<image>")
IMAGE_TOKENS = 4  # 16 x 16 pixels in patches of 8 x 8
TEMPLATE = """{% for message in messages %}<s>{{ message['role'] }}: {% if message['content'] is string %}\
{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}\
{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


def tokenizer(template: str = TEMPLATE, **marks: str) -> PreTrainedTokenizerFast:
    """A token per character, so that every token can be read in a text: those of ASCII, space and line end.

    Args:
        marks: further special tokens, by the names of the attributes that have them.
    """
    special = [*SPECIAL, *marks.values()]
    letters = [*special, *map(chr, range(33, 127)), "Ġ", "Ċ"]
    found = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    names: dict[str, Any] = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL, strict=False))
    names |= {"model_input_names": ["input_ids", "attention_mask"], "extra_special_tokens": marks}
    return PreTrainedTokenizerFast(tokenizer_object=found, chat_template=template, **names)


def random_model(kind: str, own: PreTrainedTokenizerFast, image: str, **changes: Any) -> PreTrainedModel:
    """The model of a kind with this tokenizer, of whose tokens `image` stands for a part of an image."""
    config = BY_TYPE[kind].config
    text = config["text_config"] | {"vocab_size": len(own), "max_position_embeddings": 1024}
    changes |= {"text_config": text, "image_token_id": own.convert_tokens_to_ids(image)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForMultimodalLM.from_config(AutoConfig.for_model(kind, **config | changes)).eval()
        draw_weights(model)
        spread_logits(model)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 2, 0
    return model


def llava() -> tuple[PreTrainedModel, PreTrainedTokenizerFast, LlavaProcessor]:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil  # older releases have none

    own = tokenizer()
    size = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    rest = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    processor = LlavaProcessor(CLIPImageProcessorPil(**size), own, chat_template=TEMPLATE, **rest)
    return random_model("llava", own, "<image>", image_token_index=IMAGE_ID), own, processor


def save_llava(folder: Path) -> Path:
    """Write a LLaVA with its tokenizer and processor; returns the folder."""
    model, _, processor = llava()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def gemma3() -> tuple[PreTrainedModel, PreTrainedTokenizerFast, Gemma3Processor]:
    """A Gemma 3, which reads types of tokens too, and whose template has one token for an image that becomes others."""
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    marks = {"boi_token": "<begin>", "eoi_token": "<end>", "image_token": "<soft>"}
    own = tokenizer(TEMPLATE.replace("<image>", "<begin>"), **marks)
    pixels = Gemma3ImageProcessorPil(size={"height": 16, "width": 16})
    processor = Gemma3Processor(pixels, own, image_seq_length=4, chat_template=own.chat_template)
    return random_model("gemma3", own, "<soft>"), own, processor


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
