"""From a conversation with images to what the model reads, by the model's processor. Knows no command."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lade.applications.images.errors import ImageError
from lade.applications.images.pixels import decoded
from lade.applications.images.prompt import Prompt
from lade.base.shown import one_line

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

MESSAGES = "messages"
OF_TEXTS = ("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id")


class ImageInputs:
    """Makes prompts with images. Not for several threads at once.

    Args:
        processor: of the model, with a tokenizer of its own.
        model: reads the inputs on its device and, but for integers, in its dtype.
    """

    def __init__(self, processor: Any, model: PreTrainedModel) -> None:
        self._processor, self._device, self._dtype = processor, model.device, model.dtype
        self._reserved = _reserved(processor, model.config)

    def prompt(self, told: Any, images: Sequence[tuple[str, str]], text: Callable[[Any], str]) -> Prompt:
        """The prompt of a conversation.

        Args:
            told: all that its text is made of.
            images: in the order of their places in it, as of `decoded`.
            text: from what has the chat template to the text.

        Raises:
            ImageError: an image cannot be read, or the model's template or processor does not take the conversation.
        """
        owner = self.template_owner
        if owner is None:
            message = "be text only, since the model has no chat template that says where images stand"
            raise ImageError(MESSAGES, message)
        self._check_texts(told)
        pictures = decoded(images)
        return self._prompt(self._processed(text(owner), pictures))

    @property
    def template_owner(self) -> Any:
        """What has the chat template of conversations with images: the processor or its tokenizer; `None`: neither."""
        both = (self._processor, self._processor.tokenizer)
        return next((owner for owner in both if getattr(owner, "chat_template", None)), None)

    def _check_texts(self, told: Any) -> None:
        """No text may stand for an image that is not there."""
        texts = json.dumps(told, ensure_ascii=False, default=str)
        for token in self._reserved:
            if token in texts:
                allowed = (
                    f"without {token!r} in their texts where there are images, since it stands for one or a part of one"
                )
                raise ImageError(MESSAGES, f"be {allowed}, got a text with it")

    def _processed(self, text: str, pictures: Sequence[Any]) -> dict[str, Any]:
        try:
            found = self._processor(text=[text], images=pictures, add_special_tokens=False, return_tensors="pt")
        except Exception as error:  # a processor comes with the model, and refuses as it likes
            allowed = f"ones that the model's processor takes ({one_line(error)})"
            raise ImageError(MESSAGES, f"be {allowed}, got {len(pictures)} images") from error
        return dict(found)

    def _prompt(self, found: dict[str, Any]) -> Prompt:
        ids = found.pop("input_ids")[0].tolist()
        found.pop("attention_mask", None)
        return Prompt(ids, {name: self._placed(value) for name, value in found.items()})

    def _placed(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(self._device, self._dtype if value.is_floating_point() else value.dtype)


def _reserved(processor: Any, config: PreTrainedConfig) -> list[str]:
    """The tokens that a processor or the configuration of its model names, but for those that texts have anyway."""
    tokens = [value for name, value in vars(processor).items() if name.endswith("_token")]
    named = {name: value for name, value in config.to_dict().items() if name.endswith(("_token_id", "_token_index"))}
    ids = [value for name, value in named.items() if name not in OF_TEXTS and isinstance(value, int)]
    tokens += processor.tokenizer.convert_ids_to_tokens(ids)
    return list(dict.fromkeys(token for token in tokens if isinstance(token, str) and token))
