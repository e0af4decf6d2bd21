"""Answers the messages of a conversation with a causal language model. Knows no terminal and no commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from math import inf
from typing import TYPE_CHECKING

from lade.applications.chat.conversation import Conversation
from lade.applications.chat.decoder import TENANT, Decoded, Decoder
from lade.applications.chat.formats import Format, Message
from lade.applications.chat.reply import Reply, Total
from lade.applications.chat.settings import ChatSettings
from lade.base.shown import first_line

if TYPE_CHECKING:
    from torch import Tensor
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
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        prompt_format: Format,
        decoder: Decoder,
        settings: ChatSettings | None = None,
    ) -> None:
        self.model, self.tokenizer, self.prompt_format, self.decoder = model, tokenizer, prompt_format, decoder
        self.settings = settings or ChatSettings()
        self.conversation, self.total = Conversation(), Total()
        self._comparisons, self._sampled = count(), 0

    def answer(
        self, message: str, write: Callable[[str], object], stopped: Callable[[], bool] = lambda: False
    ) -> Reply:
        """Answer a message, and add both to the conversation.

        Args:
            write: takes the text while it is decoded.
            stopped: asked after each step; true ends the answer. What there is of it stays, if it is a token.

        Raises:
            MessageTooLongError: the message alone fills the model's positions.
            ModelFailedError: the model raised an error of another kind than OSError and ValueError.
            ValueError: the chat template refuses the conversation.
        """
        turns, ids = self._fit([*self.conversation.turns, {"role": "user", "content": message}])
        seed = None if self.settings.seed is None else self.settings.seed + self._sampled
        cost = self._decode(ids, write, stopped, seed=seed)
        dropped = (len(self.conversation.turns) + 1 - len(turns)) // 2
        reply = Reply(self._text(cost), ids.shape[1], dropped, cost, self._plain)
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
            reply = self.answer(message, write, stopped)
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
        _, ids = self._fit(self.conversation.turns[:-1])
        found = [self._compared(ids, stopped, plain) for plain in (True, False)]
        plain, drafted = (Reply(self._text(cost), ids.shape[1], 0, cost) for cost in found)
        return plain, drafted

    def forget(self) -> None:
        """Begin a new conversation with the same system prompt."""
        self.conversation.turns = []
        self.decoder.forget()

    def set_system(self, system: str | None) -> None:
        """Set the system prompt. ValueError where the prompt format has none."""
        if system and not self.prompt_format.takes_system(self.tokenizer):
            raise ValueError("the model must have a prompt format with a system prompt, got one without")
        self.conversation.system = system or None

    @property
    def _plain(self) -> str | None:
        """Why it decodes one token per forward, empty where the settings say so; `None` where it drafts."""
        return self.decoder.reason or ("" if self.settings.plain else None)

    def _compared(self, ids: Tensor, stopped: Callable[[], bool], plain: bool) -> Decoded:
        import lade

        tenant = f"compare-{next(self._comparisons)}"
        before, self.settings = self.settings, replace(self.settings, plain=plain)
        try:
            return self._decode(ids, lambda text: None, stopped, seed=self.settings.seed or 0, tenant=tenant)
        finally:
            self.settings = before
            self.decoder.forget(tenant)
            lade.drop_pools(self.model, tenant)

    def _decode(
        self,
        ids: Tensor,
        write: Callable[[str], object],
        stopped: Callable[[], bool],
        *,
        seed: int | None,
        tenant: str = TENANT,
    ) -> Decoded:
        from lade.applications.chat.streamer import StepStreamer

        stop, settings = self.prompt_format.stop, self.settings
        streamer = StepStreamer(self.tokenizer, write, color=settings.color and not settings.markdown, stop=stop)
        try:
            return self.decoder.decode(
                ids,
                streamer,
                stopped,
                drafts=not settings.plain,
                tenant=tenant,
                seed=seed,
                max_new_tokens=int(min(settings.max_new_tokens, self._positions - ids.shape[1])),
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

    def _fit(self, turns: list[Message]) -> tuple[list[Message], Tensor]:
        """The newest turns that leave room for an answer, or the last message with room for one token.

        Returns:
            The turns, and their prompt as [1, P] token ids.
        """
        ids = self._encode(turns)
        while self.prompt_format.remembers and len(turns) > 1 and ids.shape[1] + self._room > self._positions:
            turns = turns[2:]
            ids = self._encode(turns)
        length = ids.shape[1]
        if length >= self._positions:
            raise MessageTooLongError(
                f"the message is too long: its prompt has {length} tokens and the model {self._positions} positions"
            )
        return turns, ids

    def _encode(self, turns: list[Message]) -> Tensor:
        messages = self.conversation.with_system(turns)
        ids: Tensor = self.prompt_format.encode(self.tokenizer, messages)["input_ids"]
        return ids.to(self.model.device)
