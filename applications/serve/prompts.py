"""From messages and texts to token ids: the tokenizer's chat template, or lines that begin with a role.

Knows the tokenizer and the model's number of positions; no request.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import chain
from math import inf, isinf
from typing import Any

from lade.applications.chat.formats import PLAIN
from lade.applications.images.parts import reads_parts_alone
from lade.applications.images.prompt import Prompt
from lade.applications.serve.errors import BAD_REQUEST, APIError, bad
from lade.applications.serve.image_prompts import ImagePrompts
from lade.applications.serve.rendered import characters_of, rendered
from lade.applications.serve.tools import ToolFormat, format_of

TOO_LONG = "context_length_exceeded"
NOTICE = "the model has no chat template: messages are sent as lines that begin with a role"
PART = 1 << 16  # characters of a document that are encoded at once
ANSWERED: Mapping[str, Any] = {"add_generation_prompt": True}


class Prompts:
    """Encodes prompts. For any thread.

    Args:
        tokenizer: of the model.
        positions: tokens of prompt and answer that the model takes; infinity if nothing bounds them.
        vocabulary: ids below it are tokens of the model.
        images: encodes prompts with images; `None` where the model's are texts alone.
    """

    def __init__(self, tokenizer: Any, positions: float, vocabulary: int, images: ImagePrompts | None = None) -> None:
        self.tokenizer, self.positions, self.vocabulary, self.images = tokenizer, positions, vocabulary, images
        self._longest = max(map(len, tokenizer.get_vocab()), default=1)  # characters of a token
        self._lock = threading.Lock()
        self._owner = tokenizer
        if images is not None and not tokenizer.chat_template:
            self._owner = images.template_owner or tokenizer
        self._in_parts = self.has_template and reads_parts_alone(self._rendered)

    @property
    def has_template(self) -> bool:
        return bool(self._owner.chat_template)

    def _rendered(self, messages: Sequence[dict[str, Any]]) -> str:
        try:
            return rendered(self._owner, None, messages, (), {})
        except APIError:
            return ""

    @property
    def shows_calls(self) -> bool:
        """Whether the chat template reads earlier calls of the assistant."""
        return "tool_calls" in (self._owner.chat_template or "")

    @property
    def chat_stops(self) -> tuple[str, ...]:
        """Texts that end an answer where roles are lines."""
        return () if self.has_template or PLAIN.stop is None else (PLAIN.stop,)

    @property
    def tool_format(self) -> ToolFormat:
        return format_of(self._owner.chat_template)

    @property
    def keeps_special(self) -> bool:
        """Whether the marker of a call is a special token, which texts leave out otherwise."""
        return self.tool_format.begin in self.tokenizer.all_special_tokens

    def of_messages(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        options: Mapping[str, Any] = ANSWERED,
    ) -> list[int]:
        """The prompt of a conversation.

        Args:
            tools: functions that the answer may call.
            options: arguments of `apply_chat_template`; without any, the prompt ends where the answer begins.
        """
        self._check_size("messages", characters_of(messages))
        template = None if self.has_template else PLAIN.template
        with self._lock:
            text = rendered(self._owner, template, messages, tools, options, self._in_parts)
        return self._checked("messages", self._encode(text, special=False))

    def of_images(
        self,
        messages: Sequence[dict[str, Any]],
        images: Sequence[tuple[str, str]],
        tools: Sequence[dict[str, Any]] = (),
        options: Mapping[str, Any] = ANSWERED,
    ) -> Prompt:
        """The prompt of a conversation with images.

        Args:
            messages, images: as of `ImagePrompts.encoded`.
            tools, options: as of `of_messages`.
        """
        if self.images is None:
            message = "messages must be text only, since the server reads no images for this model"
            raise APIError(BAD_REQUEST, f"{message}, got {len(images)} of them", "messages")
        self._check_size("messages", characters_of(messages))
        prompt = self.images.encoded(messages, images, tools, options)
        self._checked("messages", prompt.ids)
        return prompt

    @property
    def most(self) -> int | None:
        """Tokens of prompt and answer that the model takes; `None` if nothing bounds them."""
        return None if isinf(self.positions) else int(self.positions)

    def of_text(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text.

        Args:
            special: whether it gets the special tokens of the tokenizer.
        """
        self._check_size("prompt", len(text))
        return self._checked("prompt", self._encode(text, special))

    def of_prompt(self, prompt: str | list[int]) -> list[int]:
        """The prompt of a completion, from a text or from token ids."""
        if isinstance(prompt, str):
            ids = self.of_text(prompt)
            if not ids:
                raise bad("prompt", "a text of at least one token", prompt)
            return ids
        if max(prompt) >= self.vocabulary:
            raise bad("prompt", f"token ids from 0 to {self.vocabulary - 1}", max(prompt))
        return self._checked("prompt", prompt)

    def of_prediction(self, text: str) -> list[int]:
        """A predicted answer; an empty one where it is longer than any answer."""
        return [] if len(text) / self._longest > self.positions else self._encode(text, special=False)

    def of_document(self, text: str) -> list[int]:
        """The tokens of a text that answers may repeat; a long one in parts, between which prompts get their turn."""
        parts = range(0, len(text), PART)
        return list(chain.from_iterable(self._encode(text[part : part + PART], special=False) for part in parts))

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        with self._lock:
            return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _encode(self, text: str, special: bool) -> list[int]:
        with self._lock:
            found: list[int] = self.tokenizer(text, add_special_tokens=special)["input_ids"]
        return found

    def _check_size(self, param: str, characters: int) -> None:
        """An error before the work where a text is too long whatever its tokens are."""
        if characters / self._longest > self.positions:
            raise self._too_long(param, f"a text of {characters} characters")

    def _checked(self, param: str, ids: list[int]) -> list[int]:
        if len(ids) >= self.positions:
            raise self._too_long(param, f"{len(ids)} tokens")
        return ids

    def _too_long(self, param: str, given: str) -> APIError:
        most = f"at most {int(self.positions) - 1} tokens, which leaves room for one more"
        return APIError(400, f"{param} must have {most}, got {given}", param, TOO_LONG)


def positions_of(model: Any) -> float:
    """Tokens that a model takes; infinity if its configuration names no bound."""
    named = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return named if isinstance(named, int) and named > 0 else inf
