"""How a model's own texts are made up: what they begin with and, for a chat model, whose turn it is.

A chat model writes a user's message after the head of its chat template, then answers it (Magpie, arXiv 2406.08464).
Other models write on from the start token. Knows no model's forward and no predictions.

R texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lade.base.importing import IMPORTING
from lade.facts.vocabulary import readable

MARK = "LADE-MESSAGE"  # stands for the user's message in a rendered template
LONGEST = 256  # tokens of a template, at most; models with longer ones write no messages
MESSAGE = 64  # tokens of a user's message, at most


@dataclass(frozen=True, slots=True)
class Turns:
    """The fixed tokens of texts.

    Attributes:
        head: before a user's message, or before a text without messages; at least one token.
        middle: between a message and its answer; empty: there are no messages.
        ends: tokens that end a message or a text.
    """

    head: tuple[int, ...]
    middle: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


def turns_of(model: Any, tokenizer: Any = None) -> Turns:
    """The chat template's turns, if the tokenizer has one; else texts begin with the model's start token."""
    start, ends = special_tokens(model)
    head, middle = _template(tokenizer)
    known = all(0 <= token < readable(model) for token in head + middle)
    if head and middle and known and len(head + middle) <= LONGEST:
        return Turns(head, middle, tuple(ends))
    return Turns((start,), (), tuple(ends))


def local_tokenizer(model: Any) -> Any:
    """The tokenizer that lies beside the model's weights on this machine, or `None`; uses no network."""
    name = getattr(model, "name_or_path", None)
    if not name or not isinstance(name, str):
        return None
    with IMPORTING:
        from transformers import AutoTokenizer
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True)
    except Exception:  # noqa: BLE001 - none there, a package is missing, or code of the model's author is refused
        return None
    return tokenizer if len(tokenizer) <= readable(model) else None


def special_tokens(model: Any) -> tuple[int, list[int]]:
    """The token that begins a text, 0 if the model has none, and those that end one."""
    configs = [getattr(model, "generation_config", None), model.config.get_text_config(decoder=True)]
    begins, ends = (
        next((value for config in configs if (value := getattr(config, name, None)) is not None), None)
        for name in ("bos_token_id", "eos_token_id")
    )
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return begins if begins is not None else next(iter(ends), 0), ends


def _template(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens of a chat template before and after a user's message; empty if there is no usable template."""
    if not getattr(tokenizer, "chat_template", None):
        return (), ()
    messages = [{"role": "user", "content": MARK}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception:  # noqa: BLE001 - a template is a program of the model's author, which may raise anything
        return (), ()
    head, *tails = text.split(MARK)
    if len(tails) != 1:
        return (), ()
    before, after = (tuple(tokenizer(part, add_special_tokens=False)["input_ids"]) for part in (head, tails[0]))
    return before, after


class TurnState:
    """Which tokens of R texts the model chooses, and which are fixed.

    Args:
        state: [3, R] as `state` was earlier; default: texts whose head was read.

    Attributes:
        state: [3, R] int64: the next fixed token's index in middle + head, or -1 where the model chooses; 1 in an
            answer, or in a text without messages; how many tokens of this turn the model chose. Never changed in place.
    """

    def __init__(self, turns: Turns, rows: int, device: Any, state: torch.Tensor | None = None) -> None:
        self._turns = turns
        self._fixed = torch.tensor(turns.middle + turns.head, device=device)
        self._ends = torch.tensor(turns.ends, dtype=torch.int64, device=device)
        if state is None:
            state = torch.tensor([[-1], [int(not turns.middle)], [0]], device=device).expand(3, rows)
        self.state = state.to(device)

    @property
    def chooses(self) -> torch.Tensor:
        """[R] whether the model chooses the next token."""
        return self.state[0] < 0

    def follow(self, chosen: torch.Tensor) -> torch.Tensor:
        """[R] the next tokens: those that the model chose, where it may choose."""
        at, answers, count = self.state
        middle = len(self._turns.middle)
        over = (chosen[:, None] == self._ends).any(1)
        if middle:
            over |= (answers == 0) & ((chosen == self._turns.middle[0]) | (count >= MESSAGE))
        at = torch.where((at < 0) & over, middle * answers, at)
        fixed = at >= 0
        tokens = torch.where(fixed, self._fixed[at.clamp(min=0)], chosen)
        at = at + fixed.long()
        done = fixed & ((at == middle) | (at == len(self._fixed)))
        answers = torch.where(done, (at == middle).long() if middle else answers, answers)
        self.state = torch.stack([torch.where(done, -1, at), answers, torch.where(fixed, 0, count + 1)])
        return tokens


def check_state(turns: Turns, state: torch.Tensor, rows: int) -> None:
    """ValueError if this is no state of so many texts."""
    if state.dtype != torch.int64 or state.shape != (3, rows):
        raise ValueError("it must hold the turns of its texts")
    at, answers, _ = state
    if not ((at >= -1) & (at < len(turns.middle + turns.head)) & (answers >= 0) & (answers <= 1)).all():
        raise ValueError("it must hold the turns of its texts")


def temperatures(rows: int, span: tuple[float, float], device: Any) -> torch.Tensor:
    """[R, 1] temperatures, evenly from one to the other."""
    return torch.linspace(span[0], span[1], rows, device=device)[:, None]
