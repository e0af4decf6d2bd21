"""What is run: prompts as a model's tokens, and how every contender generates. Knows no method and runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any

from lade.applications.bench.conversation import Conversation, Style, turn_lengths
from lade.applications.bench.prompts import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Score = Callable[[Prompt, str], bool | None]  # whether an answer is right; None where that cannot be told


@dataclass(frozen=True)
class RunOptions:
    """How every contender generates: one point of a bench's grid."""

    max_new_tokens: int = 128
    repeats: int = 1
    warmup: int = 1  # untimed calls of each contender before the first record
    seed: int = 0
    temperature: float = 0.0  # 0: greedy
    top_k: int = 0
    top_p: float = 1.0
    eos: tuple[int, ...] | None = None  # None: the model's own
    batch: int = 1  # prompts side by side
    context: int | None = None  # prompt tokens that every prompt is brought to
    turns: int | None = None  # of a conversation, at most; None: all
    chat: bool = True  # through the model's chat template, where it has one


@dataclass(frozen=True)
class Fitting:
    """A prompt that fits the model, and how much of it does."""

    prompt: Prompt
    turns: int  # those that fit, the first ones
    length: int  # the most prompt tokens that one of them may have
    filler: tuple[int, ...] = ()  # tokens of other prompts, as many as the context asked for


@dataclass(frozen=True)
class Task:
    """Prompts that fit the model, how many did not, and how many later turns of those that fit did not."""

    name: str
    prompts: tuple[Fitting, ...]
    skipped: int
    style: Style
    turns_left_out: int = 0
    score: Score | None = None

    @property
    def longest(self) -> int:
        return max(fitting.length for fitting in self.prompts)


def make_task(
    name: str,
    prompts: Sequence[Prompt],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    options: RunOptions,
    score: Score | None = None,
) -> Task:
    """Tokenises. ValueError where no prompt fits the model with the new tokens, or its vocabulary lacks an EOS id."""
    config = model.config.get_text_config()
    beyond = [eos for eos in options.eos or () if eos >= config.vocab_size]
    if beyond:
        raise ValueError(f"--eos {beyond[0]}: the model's vocabulary has {config.vocab_size} entries")
    room = room_of(model, options.max_new_tokens)
    style = Style(tokenizer, options.chat)
    if options.context is not None:
        return Task(name, brought(prompts, style, options, room), 0, style, score=score)
    found = [_fitting(prompt, style, options, room) for prompt in prompts]
    fitting = tuple(one for one in found if one.turns)
    if not fitting:
        raise ValueError(
            f"no prompt of {name} fits: with {options.max_new_tokens} new tokens "
            f"each exceeds the model's {config.max_position_embeddings} positions"
        )
    left_out = sum(len(one.prompt.turns[: options.turns]) - one.turns for one in fitting)
    return Task(name, fitting, len(found) - len(fitting), style, left_out, score)


def room_of(model: PreTrainedModel, new_tokens: int) -> int | None:
    """Prompt tokens that leave positions for the new ones; None where positions have no end."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return None if positions is None else positions - new_tokens


def _fitting(prompt: Prompt, style: Style, options: RunOptions, room: int | None) -> Fitting:
    """No turn of it fits where `turns` is 0."""
    lengths = turn_lengths(style, prompt.turns[: options.turns], options.max_new_tokens)
    fitting = [length for length in lengths if room is None or length <= room]
    return Fitting(prompt, len(fitting), max(fitting, default=0))


def brought(prompts: Sequence[Prompt], style: Style, options: RunOptions, room: int | None) -> tuple[Fitting, ...]:
    """Prompts that are to be cut, or filled up from the prompts behind them, to one length.

    Few prompts are repeated until they suffice, which flatters whatever copies.
    """
    assert options.context is not None
    if room is not None and options.context > room:
        raise ValueError(
            f"--context {options.context}: with {options.max_new_tokens} new tokens it exceeds "
            f"the model's {room + options.max_new_tokens} positions"
        )
    texts = [style.tokens(prompt.text) for prompt in prompts]
    return tuple(
        Fitting(
            prompt,
            len(prompt.turns[: options.turns]),
            options.context,
            tuple(islice(cycle(chain(*texts[index + 1 :], *texts[: index + 1])), options.context)),
        )
        for index, prompt in enumerate(prompts)
    )


def ask(conversation: Conversation, fitting: Fitting, turn: int, options: RunOptions) -> list[int]:
    """The prompt tokens of a turn, at the length that was asked for, or at most at the one that fits.

    A prompt that is cut loses its beginning, all but a mark of it.
    """
    tokens = conversation.ask(fitting.prompt.turns[turn])
    wanted = fitting.length if options.context is not None else min(fitting.length, len(tokens))
    mark = tokens[:1] if tokens[0] == conversation.style.tokenizer.bos_token_id else []
    body = [*fitting.filler, *tokens[len(mark) :]]
    return mark + body[len(body) - (wanted - len(mark)) :]


def generate_arguments(model: PreTrainedModel, options: RunOptions, pad: int) -> dict[str, Any]:
    arguments = {"max_new_tokens": options.max_new_tokens, "eos_token_id": eos_of(model, options), "pad_token_id": pad}
    if options.temperature == 0:
        return arguments | {"do_sample": False}
    sampling = {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p}
    return arguments | sampling | {"do_sample": True}


def eos_of(model: PreTrainedModel, options: RunOptions) -> list[int] | None:
    """The ids that end a text; None where nothing but its length does."""
    eos = list(options.eos) if options.eos else model.generation_config.eos_token_id
    return [eos] if isinstance(eos, int) else eos
