"""Answers the messages of a conversation with a causal language model. Knows no terminal and no commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from math import inf
from typing import TYPE_CHECKING

from lade.applications.chat.conversation import Conversation
from lade.applications.chat.decoder import TENANT, Decoded, Decoder
from lade.applications.chat.formats import Format
from lade.applications.chat.images import Attachment, ChatImages
from lade.applications.chat.messages import Message, images_in, user_message
from lade.applications.chat.reply import Reply, Total
from lade.applications.chat.settings import ChatSettings
from lade.applications.images.prompt import Prompt
from lade.base.shown import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class MessageTooLongError(ValueError):
    """A message that leaves no position for an answer, even alone."""


class ModelFailedError(ValueError):
    """The model's code raised an error while it answered."""


class Chatbot:
    """Answers messages; keeps as many earlier turns as the model's positions allow.

    Attributes:
        conversation: unchanged by an answer that fails, and by one that is stopped before its first token.
        settings: may be replaced between answers.
        total: the cost of all answers.
        attached: the images of the next message; they stay where it gets no answer.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        prompt_format: Format,
        decoder: Decoder,
        settings: ChatSettings | None = None,
        images: ChatImages | None = None,
    ) -> None:
        self.model, self.tokenizer, self.prompt_format, self.decoder = model, tokenizer, prompt_format, decoder
        self.settings = settings or ChatSettings()
        self.images = images or ChatImages(model)
        self.conversation, self.total, self.attached = Conversation(), Total(), list[Attachment]()
        self._comparisons, self._sampled = count(), 0

    def answer(
        self, message: str, write: Callable[[str], object], stopped: Callable[[], bool] = lambda: False
    ) -> Reply:
        """Answer a message with the attached images, and add both to the conversation.

        Args:
            write: takes the text while it is decoded.
            stopped: asked after each step; true ends the answer. What there is of it stays, if it is a token.

        Raises:
            MessageTooLongError: the message alone fills the model's positions.
            ModelFailedError: the model raised an error of another kind than OSError and ValueError.
            ValueError: the chat template refuses the conversation, or an image cannot be read.
        """
        reply = self._answer(user_message(message, [each.url for each in self.attached]), write, stopped)
        if reply.cost.tokens:
            self.attached = []
        return reply

    def _answer(self, message: Message, write: Callable[[str], object], stopped: Callable[[], bool]) -> Reply:
        turns, prompt = self._fit([*self.conversation.turns, message])
        seed = None if self.settings.seed is None else self.settings.seed + self._sampled
        cost = self._decode(prompt, write, stopped, seed=seed)
        dropped = (len(self.conversation.turns) + 1 - len(turns)) // 2
        reply = Reply(self._text(cost), len(prompt.ids), dropped, cost, self._plain)
        if cost.tokens:
            self.conversation.turns = [*turns, {"role": "assistant", "content": reply.text.strip()}]
            self.total.add(reply)
            self._sampled += self.settings.temperature > 0
        return reply

    def retry(self, write: Callable[[str], object], stopped: Callable[[], bool] = lambda: False) -> Reply | None:
        """Answer the last message again; `None` where there is none. Errors as of `answer`."""
        before, reply = list(self.conversation.turns), None
        message = self.conversation.undo()
        if message is None:
            return None
        try:
            reply = self._answer(message, write, stopped)
        finally:
            if reply is None or not reply.cost.tokens:
                self.conversation.turns = before
        return reply

    def compare(self, stopped: Callable[[], bool] = lambda: False) -> tuple[Reply, Reply] | None:
        """Answer the last message twice, plain and with drafts; `None` where there is none.

        Neither knows anything of earlier answers: no KV cache, and nothing that drafting learned.
        """
        if not self.conversation.turns:
            return None
        _, prompt = self._fit(self.conversation.turns[:-1])
        found = [self._compared(prompt, stopped, plain) for plain in (True, False)]
        plain, drafted = (Reply(self._text(cost), len(prompt.ids), 0, cost) for cost in found)
        return plain, drafted

    def forget(self) -> None:
        """Begin a new conversation with the same system prompt, and without attached images."""
        self.conversation.turns, self.attached = [], []
        self.decoder.forget()

    def set_system(self, system: str | None) -> None:
        """Set the system prompt. ValueError where the prompt format has none."""
        if system and not self.prompt_format.takes_system(self.tokenizer):
            raise ValueError("the model must have a prompt format with a system prompt, got one without")
        self.conversation.system = system or None

    def check_images(self, turns: Sequence[Message] = ()) -> None:
        """ValueError where the model reads no images, or those of the turns cannot be read."""
        self.images.check(images_in(turns))
        if not self.prompt_format.takes_images:
            raise ValueError("messages must be text only, since the prompt format has no place for images")

    @property
    def _plain(self) -> str | None:
        """Why it decodes one token per forward, empty where the settings say so; `None` where it drafts."""
        return self.decoder.reason or ("" if self.settings.plain else None)

    def _compared(self, prompt: Prompt, stopped: Callable[[], bool], plain: bool) -> Decoded:
        import lade

        tenant = f"compare-{next(self._comparisons)}"
        before, self.settings = self.settings, replace(self.settings, plain=plain)
        try:
            return self._decode(prompt, lambda text: None, stopped, seed=self.settings.seed or 0, tenant=tenant)
        finally:
            self.settings = before
            self.decoder.forget(tenant)
            lade.drop_pools(self.model, tenant)

    def _decode(
        self,
        prompt: Prompt,
        write: Callable[[str], object],
        stopped: Callable[[], bool],
        *,
        seed: int | None,
        tenant: str = TENANT,
    ) -> Decoded:
        import torch

        from lade.applications.chat.streamer import StepStreamer

        stop, settings = self.prompt_format.stop, self.settings
        streamer = StepStreamer(self.tokenizer, write, color=settings.color and not settings.markdown, stop=stop)
        try:
            return self.decoder.decode(
                torch.tensor([prompt.ids], device=self.model.device),
                streamer,
                stopped,
                drafts=not settings.plain,
                tenant=tenant,
                seed=seed,
                max_new_tokens=int(min(settings.max_new_tokens, self._positions - len(prompt.ids))),
                **prompt.inputs,
                **settings.sampling(),
                **({"stop_strings": [stop]} if stop else {}),
            )
        except (OSError, ValueError):
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {first_line(error)}"
            raise ModelFailedError(f"the model failed while it answered ({told})") from error

    def _text(self, cost: Decoded) -> str:
        text = str(self.tokenizer.decode(cost.tokens, skip_special_tokens=True))
        return text.split(self.prompt_format.stop)[0] if self.prompt_format.stop else text

    @property
    def _positions(self) -> float:
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or inf

    @property
    def _room(self) -> float:
        """Positions that earlier turns leave to an answer: as many as it may need, but at most half of all."""
        return min(self.settings.max_new_tokens, self._positions / 2)

    def _fit(self, turns: list[Message]) -> tuple[list[Message], Prompt]:
        """The newest turns that leave room for an answer, or the last message with room for one token.

        Returns:
            The turns, and their prompt.
        """
        prompt = self._encode(turns)
        while self.prompt_format.remembers and len(turns) > 1 and len(prompt.ids) + self._room > self._positions:
            turns = turns[2:]
            prompt = self._encode(turns)
        length = len(prompt.ids)
        if length >= self._positions:
            raise MessageTooLongError(
                f"the message is too long: its prompt has {length} tokens and the model {self._positions} positions"
            )
        return turns, prompt

    def _encode(self, turns: list[Message]) -> Prompt:
        messages = self.conversation.with_system(turns)
        if images_in(messages):
            self.check_images()
            return self.images.prompt(messages)
        return Prompt(self.prompt_format.encode(self.tokenizer, messages)["input_ids"][0].tolist())
