"""A streamer that writes a reply token by token and can colour the accepted draft tokens.

Knows the protocol of transformers' streamers plus `begin_step`, which lade calls before the tokens of a forward.
Knows no model.
"""

from collections.abc import Callable

import click
import torch
from transformers import PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from lade.applications.serve.text import Detokenizer

COLORS = ("green", "cyan")  # alternate from step to step


class StepStreamer(BaseStreamer):
    """Writes text as soon as it is final: whole characters, and nothing that may be the beginning of `stop`.

    With `color`, the first token of a step has no colour, because plain decoding gets it from the same forward; the
    other tokens of the step are coloured. Without `begin_step` calls nothing is coloured.

    Attributes:
        steps: forwards that gave tokens.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        write: Callable[[str], object],
        *,
        color: bool = False,
        stop: str | None = None,
    ) -> None:
        self._text = Detokenizer(tokenizer, [])
        self._write = write
        self._color = color
        self._stop = stop
        self._held: list[tuple[str, str | None]] = []
        self._saw_prompt = False
        self.steps = 0
        self._step_begins = self._stepwise = False
        self._in_step = 0

    def begin_step(self) -> None:
        self._step_begins = self._stepwise = True

    def put(self, value: torch.Tensor) -> None:
        if not self._saw_prompt:
            self._saw_prompt = True
            return
        for token in value.reshape(-1).tolist():
            self._count()
            self._hold(self._text.add(token))
            if not self._may_stop():
                self._release("".join(text for text, _ in self._held))

    def end(self) -> None:
        self._hold(self._text.end())
        text = "".join(text for text, _ in self._held)
        self._release(text.split(self._stop)[0] if self._stop else text)

    def _count(self) -> None:
        """Count a token, and the step that it is the first one of."""
        if self._step_begins or not self._stepwise:
            self.steps, self._in_step = self.steps + 1, 0
        self._step_begins = False
        self._in_step += 1

    def _hold(self, text: str) -> None:
        drafted = self._color and self._in_step > 1
        self._held.append((text, COLORS[self.steps % len(COLORS)] if drafted else None))

    def _may_stop(self) -> bool:
        text = "".join(text for text, _ in self._held)
        stop = self._stop or ""
        return stop in text or any(text.endswith(stop[:size]) for size in range(1, len(stop))) if stop else False

    def _release(self, text: str) -> None:
        """Write the held pieces up to the length of `text`, a prefix of them."""
        for piece, color in self._held:
            shown, text = piece[: len(text)], text[len(piece) :]
            if shown:
                self._write(click.style(shown, fg=color) if color else shown)
        self._held = []
