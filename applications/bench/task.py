"""A task: prompts as tokens, and the settings of `generate`. Knows no method and runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any

from lade.applications.bench.conversation import Conversation, Style, turn_lengths
from lade.applications.bench.prompts import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Score = Callable[[Prompt, str], bool | None]  # whether an answer is right; None: unknown


@dataclass(frozen=True)
class RunOptions:
    """The settings of every contender's `generate`: one point of a bench's grid."""

    max_new_tokens: int = 128
    repeats: int = 1
    warmup: int = 1  # untimed calls of each contender before the first record
    seed: int = 0
    temperature: float = 0.0  # 0: greedy
    top_k: int = 0
    top_p: float = 1.0
    eos: tuple[int, ...] | None = None  # None: the model's own
    batch: int = 1  # prompts side by side
    context: int | None = None  # tokens that every prompt is cut or filled to
    turns: int | None = None  # of a conversation, at most; None: all
    chat: bool = True  # use the model's chat template, if it has one
    text_units: str = "tokens"  # a name in UNITS: what the measures of texts count


@dataclass(frozen=True)
class Fitting:
    """A prompt that fits the model, and how many of its turns do."""

    prompt: Prompt
    turns: int  # the first ones, those that fit
    length: int  # prompt tokens of a turn, at most
    filler: tuple[int, ...] = ()  # tokens of other prompts, to fill the context


@dataclass(frozen=True)
class Task:
    """Prompts that fit the model.

    Attributes:
        skipped: prompts that do not fit.
        turns_left_out: later turns of fitting prompts that do not fit.
    """

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
    """Tokenise. ValueError if no prompt fits the model with the new tokens, or an EOS id is outside its vocabulary."""
    config = model.config.get_text_config()
    beyond = [eos for eos in options.eos or () if eos >= config.vocab_size]
    if beyond:
        raise ValueError(f"--eos must be below the vocabulary's size of {config.vocab_size}, got {beyond[0]}")
    room = room_of(model, options.max_new_tokens)
    style = Style(tokenizer, options.chat)
    if options.context is not None:
        return Task(name, with_context(prompts, style, options, room), 0, style, score=score)
    found = [_fitting(prompt, style, options, room) for prompt in prompts]
    fitting = tuple(one for one in found if one.turns)
    if not fitting:
        raise ValueError(
            f"no prompt of {name} fits the model's {config.max_position_embeddings} positions "
            f"with {options.max_new_tokens} new tokens"
        )
    left_out = sum(len(one.prompt.turns[: options.turns]) - one.turns for one in fitting)
    return Task(name, fitting, len(found) - len(fitting), style, left_out, score)


def room_of(model: PreTrainedModel, new_tokens: int) -> int | None:
    """Prompt tokens that leave room for the new ones; None without a limit of positions."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return None if positions is None else positions - new_tokens


def _fitting(prompt: Prompt, style: Style, options: RunOptions, room: int | None) -> Fitting:
    """`turns` is 0 if no turn fits."""
    lengths = turn_lengths(style, prompt.turns[: options.turns], options.max_new_tokens)
    fitting = [length for length in lengths if room is None or length <= room]
    return Fitting(prompt, len(fitting), max(fitting, default=0))


def with_context(prompts: Sequence[Prompt], style: Style, options: RunOptions, room: int | None) -> tuple[Fitting, ...]:
    """Prompts to be cut to one length, or filled with the tokens of the following prompts.

    Few prompts are repeated, which favours methods that copy.
    """
    assert options.context is not None
    if room is not None and options.context > room:
        raise ValueError(
            f"--context must fit the model's {room + options.max_new_tokens} positions with {options.max_new_tokens} "
            f"new tokens, got {options.context}"
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
    """The prompt tokens of a turn, at the given context, or at most the length that fits.

    A prompt is cut at its beginning; the BOS token is kept.
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
    """The ids that end a text; None if only its length does."""
    eos = list(options.eos) if options.eos else model.generation_config.eos_token_id
    return [eos] if isinstance(eos, int) else eos
