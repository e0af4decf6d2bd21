"""The turns of a prompt as tokens, through the model's chat template if it has one. Runs no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SEPARATOR = "\n\n"  # between an answer and the next turn, for models without a template


@dataclass(frozen=True)
class Style:
    """How turns are formatted for a model."""

    tokenizer: PreTrainedTokenizerBase
    template: bool = True  # use the tokenizer's chat template, if it has one

    @property
    def templated(self) -> bool:
        return self.template and bool(self.tokenizer.chat_template)

    def tokens(self, text: str, special: bool = False) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=special).input_ids)

    def text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


@dataclass
class Conversation:
    """One prompt's turns so far; calls of `ask` and `answered` alternate."""

    style: Style
    _messages: list[dict[str, str]] = field(default_factory=list)
    _tokens: list[int] = field(default_factory=list)  # for models without a template

    def ask(self, text: str) -> list[int]:
        """The whole prompt of this turn."""
        if not self.style.templated:
            opening = not self._tokens
            self._tokens += self.style.tokens(text if opening else SEPARATOR + text, special=opening)
            return list(self._tokens)
        self._messages.append({"role": "user", "content": text})
        written = self.style.tokenizer.apply_chat_template(self._messages, tokenize=False, add_generation_prompt=True)
        return self.style.tokens(str(written))  # the template has written the special tokens

    def answered(self, tokens: Sequence[int]) -> None:
        """Append the turn's answer; special tokens are left out."""
        if self.style.templated:
            self._messages.append({"role": "assistant", "content": self.style.text(tokens)})
        else:
            special = set(self.style.tokenizer.all_special_ids)
            self._tokens += [token for token in tokens if token not in special]


def turn_lengths(style: Style, turns: Sequence[str], answer: int) -> list[int]:
    """Prompt tokens of every turn, if each answer has `answer` tokens."""
    conversation, lengths = Conversation(style), []
    for index, turn in enumerate(turns):
        lengths.append(len(conversation.ask(turn)) + index * answer)
        conversation.answered([])
    return lengths
