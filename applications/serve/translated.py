"""Endpoints whose bodies are turned into the chat with the same answer: what they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import PrivateAttr, ValidationError, model_validator

from lade.applications.serve.answer import Answer, Delta
from lade.applications.serve.chat_request import ChatRequest
from lade.applications.serve.fields import Fields, Json
from lade.applications.serve.formats import Extras, Format
from lade.applications.serve.images import images_in
from lade.applications.serve.logprobs import TokenTexts
from lade.applications.serve.tools import ToolParser


class Translated(Fields):
    """A body that keeps to the rules across fields of a chat.

    Attributes:
        NAMES: fields of the chat under their names here, of those that differ.
    """

    NAMES: ClassVar[Mapping[str, str]] = {}
    _made: ChatRequest = PrivateAttr()

    @model_validator(mode="after")
    def _is_a_chat(self) -> Translated:
        try:
            self._made = ChatRequest.model_validate(self.chat_fields())
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
        return self._made

    def names(self) -> dict[str, str]:
        """Fields of the chat under their names here, of those that differ: images have the same order in both."""
        said = self.NAMES.get("messages", "messages")
        made, own = images_in(self._made.messages, "messages"), images_in(getattr(self, said), said)
        return dict(self.NAMES) | {ours: theirs for (ours, _), (theirs, _) in zip(made, own, strict=True)}

    def chat_fields(self) -> Json:
        """The fields of that chat."""
        raise NotImplementedError


class TranslatedFormat(Format):
    """Answers with one text. Events have their types in lines of their own.

    Args:
        request: the body.
        parser: of calls; `None` where there are no functions.
    """

    closing, names_events = b"", True

    def __init__(self, model: str, answer: Answer, tokens: TokenTexts, request: Any, parser: ToolParser | None) -> None:
        super().__init__(model, answer, tokens, Extras())
        self._request, self._parser = request, parser
        (self._choice_of,) = answer.choices

    def body(self) -> Json:
        choice = self._choice_of
        self.of(Delta(0, choice.text, choice.logprobs, choice.request.emitted, choice.finish))
        return self._whole()

    def _whole(self) -> Json:
        """The answer as far as it was told."""
        raise NotImplementedError
