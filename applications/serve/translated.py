"""Bodies of other endpoints that are turned into the chat with the same answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import ValidationError, model_validator

from lade.applications.serve.chat_request import ChatRequest
from lade.applications.serve.fields import Fields


class Translated(Fields):
    """A body that keeps to the rules across fields of a chat.

    Attributes:
        NAMES: fields of the chat under their names here, of those that differ.
    """

    NAMES: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="after")
    def _is_a_chat(self) -> Translated:
        try:
            self.chat()
        except ValidationError as error:
            found = error.errors()[0]
            message = found["msg"].removeprefix("Value error, ")
            if found["loc"]:
                message = f"must be the body of a chat, got {'.'.join(map(str, found['loc']))} for it: {message}"
            for name, own in self.NAMES.items():
                message = message.replace(name, own)
            raise ValueError(message) from None
        return self

    def chat(self) -> ChatRequest:
        """The chat that has the same answer."""
        raise NotImplementedError
