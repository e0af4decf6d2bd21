"""A conversation with a causal language model: its prompt, its turns, and the cost of each reply.

Knows models, tokenizers and lade's statistics; options and environment variables are in chat.py. Run as a script, it
is `lade chat`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import lade

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

Message = dict[str, str]

GREEDY = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}


class MessageTooLongError(ValueError):
    """A message that leaves no position for a reply, even alone."""


@dataclass(frozen=True)
class Format:
    """A prompt format: a Jinja chat template (`None`: the tokenizer's own), and the text that ends a reply."""

    template: str | None
    stop: str | None = None


LLAMA = Format(
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
PLAIN = Format(  # for tokenizers without a template
    "{{ bos_token }}{% for m in messages %}{{ m.role | capitalize }}: {{ m.content }}\n{% endfor %}Assistant:",
    stop="\nUser:",
)


def prompt_format(model_type: str, tokenizer: PreTrainedTokenizerBase) -> Format:
    """`llama`: Llama 2's format; `auto`: the tokenizer's own, or plain text without one."""
    if model_type == "llama":
        return LLAMA
    return Format(template=None) if tokenizer.chat_template else PLAIN


@dataclass(frozen=True)
class Reply:
    """One reply, the number of turns dropped to make room for it, and its cost (`stats` if lade decoded)."""

    text: str
    prompt_tokens: int
    new_tokens: int
    seconds: float
    dropped: int
    stats: lade.GenerationStats | None

    def summary(self) -> str:
        """Tokens, steps (forwards after the prefill), tokens per step, tokens per second."""
        plain = self.stats is None or self.stats.fallback is not None
        steps = self.new_tokens - 1 if self.stats is None or plain else self.stats.steps
        rows = [
            f"prompt tokens: {self.prompt_tokens}",
            f"tokens: {self.new_tokens}",
            f"steps: {steps}",
            f"tokens per step: {self.new_tokens / max(steps, 1):.2f}",
            f"tokens/s: {self.new_tokens / self.seconds:.1f}",
        ]
        if plain:
            rows.append(f"plain decoding{f' ({self.stats.fallback})' if self.stats else ''}")
        return "[" + ", ".join(rows) + "]"


@dataclass
class Chatbot:
    """Answers messages; keeps as many earlier turns as the model's positions allow."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    prompt_format: Format
    max_new_tokens: int
    write: Callable[[str], object]
    color: bool = False
    lookahead: bool = False  # lade decodes and has statistics
    turns: list[Message] = field(default_factory=list)

    def answer(self, message: str) -> Reply:
        """Write the reply while it is decoded. After MessageTooLongError the conversation is unchanged."""
        turns, inputs = self._fit([*self.turns, {"role": "user", "content": message}])
        prompt_tokens = inputs["input_ids"].shape[1]
        start = time.perf_counter()
        output = self._generate(inputs, prompt_tokens)[0, prompt_tokens:].tolist()
        seconds = time.perf_counter() - start
        text = str(self.tokenizer.decode(output, skip_special_tokens=True))
        if self.prompt_format.stop:
            text = text.split(self.prompt_format.stop)[0]
        dropped = (len(self.turns) + 1 - len(turns)) // 2
        self.turns = [*turns, {"role": "assistant", "content": text.strip()}]
        stats = lade.last_stats() if self.lookahead else None
        return Reply(text, prompt_tokens, len(output), seconds, dropped, stats)

    def _generate(self, inputs: BatchEncoding, prompt_tokens: int) -> Any:
        from lade.applications.color import StepStreamer

        stop = self.prompt_format.stop
        settings: dict[str, Any] = dict(GREEDY)
        if stop:
            settings |= {"stop_strings": [stop], "tokenizer": self.tokenizer}
        streamer = StepStreamer(self.tokenizer, self.write, color=self.color, stop=stop)
        room = self._positions - prompt_tokens
        return self.model.generate(
            **inputs, **settings, streamer=streamer, max_new_tokens=int(min(self.max_new_tokens, room))
        )

    @property
    def _positions(self) -> float:
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or float("inf")

    def _fit(self, turns: list[Message]) -> tuple[list[Message], BatchEncoding]:
        """The newest turns that leave room for a whole reply, or the last message with room for one token."""
        inputs = self._encode(turns)
        while len(turns) > 1 and inputs["input_ids"].shape[1] + self.max_new_tokens > self._positions:
            turns = turns[2:]
            inputs = self._encode(turns)
        length = inputs["input_ids"].shape[1]
        if length >= self._positions:
            raise MessageTooLongError(
                f"the message is too long: its prompt has {length} tokens and the model {self._positions} positions"
            )
        return turns, inputs

    def _encode(self, turns: list[Message]) -> BatchEncoding:
        encoded = self.tokenizer.apply_chat_template(
            turns,
            chat_template=self.prompt_format.template,
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        return encoded.to(self.model.device)


if __name__ == "__main__":
    from lade.applications.cli import main

    main(["chat", *sys.argv[1:]])
