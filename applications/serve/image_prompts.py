"""From messages with images to token ids and what else the model reads, by the model's processor. Knows no request."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from lade.applications.serve.errors import BAD_REQUEST, APIError, one_line
from lade.applications.serve.fields import Json
from lade.applications.serve.openmp import release_threads
from lade.applications.serve.pixels import decoded
from lade.applications.serve.rendered import rendered

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

OF_TEXTS = ("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads.

    Attributes:
        ids: its tokens.
        inputs: further arguments of the model's forward, such as `pixel_values`; none where there are no images.
    """

    ids: list[int]
    inputs: dict[str, Any] = field(default_factory=dict)


class ImagePrompts:
    """Encodes prompts with images. For any thread, one at a time, since pixels take memory.

    Args:
        processor: of the model, with a tokenizer of its own.
        model: reads the inputs on its device and, but for integers, in its dtype.
    """

    def __init__(self, processor: Any, model: PreTrainedModel) -> None:
        self._processor, self._device, self._dtype = processor, model.device, model.dtype
        self._reserved = _reserved(processor, model.config)
        self._lock = threading.Lock()

    def encoded(
        self,
        messages: Sequence[Json],
        images: Sequence[tuple[str, str]],
        tools: Sequence[Json],
        options: Mapping[str, Any],
    ) -> Prompt:
        """The prompt of a conversation.

        Args:
            messages: with the places of images as parts `{"type": "image"}`.
            images: for each place the name of its field, and what this has in base64.
            tools, options: as of `rendered`.

        Raises:
            APIError: an image cannot be read, or the model's template or processor does not take the conversation.
        """
        owner = self.template_owner
        if owner is None:
            message = "messages must be text only, since the model has no chat template that says where images stand"
            raise APIError(BAD_REQUEST, message, "messages")
        self._check_texts([messages, tools, options])
        with self._lock:
            try:
                pictures = decoded(images)
                text = rendered(owner, None, messages, tools, options, in_parts=True)
                return self._prompt(self._processed(text, pictures))
            finally:
                release_threads()  # else the engine's may sleep at barriers from now on

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
                raise APIError(BAD_REQUEST, f"messages must be {allowed}, got a text with it", "messages")

    def _processed(self, text: str, pictures: Sequence[Any]) -> dict[str, Any]:
        try:
            found = self._processor(text=[text], images=pictures, add_special_tokens=False, return_tensors="pt")
        except Exception as error:  # a processor comes with the model, and refuses as it likes
            allowed = f"ones that the model's processor takes ({one_line(error)})"
            given = f"{len(pictures)} images"
            raise APIError(BAD_REQUEST, f"messages must be {allowed}, got {given}", "messages") from error
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
