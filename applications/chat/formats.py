"""Prompt formats: from the turns of a conversation to token ids. Knows tokenizers; no model and no terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lade.applications.chat.messages import Message
from lade.applications.images.parts import in_parts, reads_parts_alone
from lade.base.shown import first_line
from lade.models.shipped import NAMES

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

PROBE = "A system prompt."
TYPES = ("auto", "llama", "plain", "text")


@dataclass(frozen=True)
class Format:
    """A prompt format.

    Attributes:
        template: a Jinja chat template; `None` for the tokenizer's own.
        stop: the text that ends an answer.
        remembers: whether earlier turns are in the prompt.
        in_parts: whether contents are given as lists of parts.
        takes_images: whether the template may have places for images.
    """

    template: str | None
    stop: str | None = None
    remembers: bool = True
    in_parts: bool = False
    takes_images: bool = False

    def text(self, owner: Any, messages: list[Message]) -> str:
        """The prompt of these messages, up to where the answer begins.

        Args:
            owner: the tokenizer or processor whose `apply_chat_template` makes it.

        Raises:
            ValueError: the template refuses them.
        """
        lines = in_parts(messages) if self.in_parts else messages
        how: dict[str, Any] = {"chat_template": self.template, "add_generation_prompt": True, "tokenize": False}
        try:
            return str(owner.apply_chat_template(lines, **how))
        except Exception as error:  # a template is a program that comes with the model
            told = first_line(error)
            raise ValueError(f"messages must be ones that the model's chat template takes, got {told}") from error

    def encode(self, tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> BatchEncoding:
        """The prompt as tensors of one row. ValueError as of `text`."""
        text = self.text(tokenizer, messages)
        return tokenizer(text, add_special_tokens=False, return_tensors="pt", verbose=False)

    def takes_system(self, tokenizer: PreTrainedTokenizerBase) -> bool:
        """Whether a system prompt is a part of the prompt."""
        messages = [{"role": "system", "content": PROBE}, {"role": "user", "content": "Hello"}]
        try:
            return PROBE in self.text(tokenizer, messages)
        except ValueError:
            return False


LLAMA = Format(
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] "
    "{% if loop.index0 == 1 and messages[0].role == 'system' %}"
    "{{ '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' }}{% endif %}{{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
PLAIN = Format(  # for tokenizers without a template
    "{{ bos_token }}{% for m in messages %}{{ m.role | capitalize }}: {{ m.content }}\n{% endfor %}Assistant:",
    stop="\nUser:",
)
TEXT = Format("{{ bos_token }}{{ messages[-1].content }}", remembers=False)


def prompt_format(
    model_type: str, tokenizer: PreTrainedTokenizerBase, other: Callable[[], str | None] = lambda: None
) -> Format:
    """The format of a type in `TYPES`.

    `auto`: the tokenizer's own; without one plain text, and for the small models that ship the message alone.

    Args:
        other: a chat template for a tokenizer without one; `None` where there is none either.
    """
    if model_type == "auto":
        if Path(tokenizer.name_or_path).name in NAMES and not tokenizer.chat_template:
            return TEXT
        template = None if tokenizer.chat_template else other()
        return _own(tokenizer, template) if tokenizer.chat_template or template else PLAIN
    return {"llama": LLAMA, "plain": PLAIN, "text": TEXT}[model_type]


def _own(tokenizer: PreTrainedTokenizerBase, template: str | None) -> Format:
    found = Format(template, takes_images=True)

    def rendered(messages: list[Message]) -> str:
        try:
            return found.text(tokenizer, messages)
        except ValueError:
            return ""

    return replace(found, in_parts=reads_parts_alone(rendered))
