"""Prompt formats: from the turns of a conversation to token ids. Knows tokenizers; no model and no terminal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lade.models.shipped import NAMES

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

Message = dict[str, str]

PROBE = "A system prompt."
TYPES = ("auto", "llama", "plain", "text")


@dataclass(frozen=True)
class Format:
    """A prompt format.

    Attributes:
        template: a Jinja chat template; `None` for the tokenizer's own.
        stop: the text that ends an answer.
        remembers: whether earlier turns are in the prompt.
    """

    template: str | None
    stop: str | None = None
    remembers: bool = True

    def text(self, tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> str:
        """The prompt of these messages, up to where the answer begins.

        Raises:
            ValueError: the template refuses them.
        """
        from jinja2 import TemplateError

        try:
            return str(
                tokenizer.apply_chat_template(
                    messages, chat_template=self.template, add_generation_prompt=True, tokenize=False
                )
            )
        except TemplateError as error:
            raise ValueError(f"messages must be ones that the model's chat template takes, got {error}") from error

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


def prompt_format(model_type: str, tokenizer: PreTrainedTokenizerBase) -> Format:
    """The format of a type in `TYPES`.

    `auto`: the tokenizer's own; without one plain text, and for the small models that ship the message alone.
    """
    if model_type == "auto":
        if tokenizer.chat_template:
            return Format(template=None)
        return TEXT if Path(tokenizer.name_or_path).name in NAMES else PLAIN
    return {"llama": LLAMA, "plain": PLAIN, "text": TEXT}[model_type]
