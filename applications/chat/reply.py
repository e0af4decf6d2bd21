"""An answer and its cost, and the sum of several. Knows no model and no terminal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from lade.applications.chat.decoder import Decoded


@dataclass(frozen=True)
class Reply:
    """An answer.

    Attributes:
        text: without what ends it.
        prompt_tokens: tokens of the prompt.
        dropped: earlier turns that were dropped to make room for it.
        cost: its tokens, steps and seconds.
        plain: why it was decoded one token per forward, empty where that was asked for; `None` where lade drafted.
    """

    text: str
    prompt_tokens: int
    dropped: int
    cost: Decoded
    plain: str | None = None

    @property
    def new_tokens(self) -> int:
        return len(self.cost.tokens)

    @property
    def tokens_per_step(self) -> float:
        return self.new_tokens / max(self.cost.steps, 1)

    @property
    def speed(self) -> float:
        """Tokens per second, the prompt's forward included."""
        return self.new_tokens / max(self.cost.seconds, 1e-9)

    def summary(self) -> str:
        """Tokens, steps (forwards after the prefill), tokens per step, tokens per second."""
        cached = f" ({self.cost.cached} from the KV cache)" if self.cost.cached else ""
        rows = [
            f"prompt tokens: {self.prompt_tokens}{cached}",
            f"tokens: {self.new_tokens}",
            f"steps: {self.cost.steps}",
            f"tokens per step: {self.tokens_per_step:.2f}",
            f"tokens/s: {self.speed:.1f}",
            *([] if self.plain is None else [f"plain decoding ({self.plain})" if self.plain else "plain decoding"]),
        ]
        return f"[{', '.join(rows)}]"


@dataclass
class Total:
    """The cost of all answers of a chat."""

    replies: int = 0
    prompt_tokens: int = 0
    cached: int = 0
    new_tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    accepted: Counter[str] = field(default_factory=Counter)

    def add(self, reply: Reply) -> None:
        self.replies += 1
        self.prompt_tokens += reply.prompt_tokens
        self.cached += reply.cost.cached
        self.new_tokens += reply.new_tokens
        self.steps += reply.cost.steps
        self.seconds += reply.cost.seconds
        self.accepted.update(reply.cost.accepted)

    def lines(self) -> list[str]:
        """A few lines for a reader."""
        rows = [
            f"answers: {self.replies}",
            f"prompt tokens: {self.prompt_tokens}, {self.cached} of them from the KV cache of earlier turns",
            f"tokens: {self.new_tokens} in {self.steps} steps, {self.new_tokens / max(self.steps, 1):.2f} per step",
            f"tokens/s: {self.new_tokens / max(self.seconds, 1e-9):.1f}",
        ]
        if self.accepted:
            found = ", ".join(f"{source} {count}" for source, count in self.accepted.most_common())
            rows.append(f"accepted draft tokens by source: {found}")
        return rows
