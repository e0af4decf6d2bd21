"""Ways of choosing and emitting tokens, one outcome: plain decoding's, call for call."""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    EtaLogitsWarper,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TopKLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer

import lade
from lade.core.drafter import roots
from lade.core.noise import Noise
from lade.core.request import Choosing, Request
from lade.engine import decoding, verification
from lade.engine.acceptance import ProposedAtOnce
from lade.engine.emission import AtOnce, TokenByToken
from lade.engine.emission_factory import chooses_ahead, emission_for, eos_tokens
from lade.engine.levels import LevelByLevel
from lade.engine.purity import PARTICULAR, TEXT_BLIND
from lade.engine.scores import Record
from lade.engine.stopping import Criteria, HostRule
from lade.engine.stream import Stream
from lade.engine.text import Text, UnreadText
from lade.entry import submission
from lade.target.call import Call

CONFIG = lade.LookaheadConfig(mode="lookahead", ngram=5, window=7, guesses=7, pool_from_prompt=True)
PROMPTS = ("Once upon a time, there was a", "Tom had a dog", "One day, a bird saw a big")
NEW_TOKENS = 32
Story = tuple[PreTrainedModel, PreTrainedTokenizerBase]


def at_once(call: Call, requests: list[Request], stream: Stream, noise: Noise | None) -> AtOnce:
    return AtOnce(requests, stream, call.processors, HostRule(eos_tokens(call.criteria)), noise)


def token_by_token(call: Call, requests: list[Request], stream: Stream, noise: Noise | None) -> TokenByToken:
    record, text = Record(False, False), Text(call.input_ids)
    return TokenByToken(requests, stream, call.processors, Criteria(call.criteria, text, record), text, noise, record)


def without_text(call: Call, requests: list[Request], stream: Stream, noise: Noise | None) -> TokenByToken:
    record, text = Record(False, False), UnreadText(call.input_ids.device)
    return TokenByToken(requests, stream, call.processors, HostRule(eos_tokens(call.criteria)), text, noise, record)


def level_by_level(call: Call, requests: list[Request], stream: Stream, noise: Noise | None) -> LevelByLevel:
    text = UnreadText(call.input_ids.device)
    return LevelByLevel(requests, stream, call.processors, HostRule(eos_tokens(call.criteria)), text, noise)


@pytest.fixture(params=[at_once, token_by_token, without_text, level_by_level], ids=lambda way: way.__name__)
def emission(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every call emits in this way; its emissions are listed."""
    made: list[Any] = []

    def build(call: Call, requests: list[Request], stream: Stream, noise: Noise | None, *_: Any) -> Any:
        made.append(request.param(call, requests, stream, noise))
        return made[-1]

    monkeypatch.setattr(decoding, "emission_for", build)
    return made


class Recorder(BaseStreamer):
    """Writes down every call, `begin_step` included."""

    def __init__(self, until: int | None = None) -> None:
        self.calls: list[Any] = []
        self.until = until

    def begin_step(self) -> None:
        self.calls.append("step")

    def put(self, value: Tensor) -> None:
        self.calls.append((value.dtype, tuple(value.shape), value.tolist()))
        if len(self.tokens()) == self.until:
            raise KeyboardInterrupt

    def end(self) -> None:
        self.calls.append("end")

    def tokens(self) -> list[Any]:
        """All but the steps, which plain decoding does not have."""
        return [call for call in self.calls if call != "step"]


def encode(story: Story, rows: int) -> dict[str, Tensor]:
    batch = story[1](list(PROMPTS[:rows]), return_tensors="pt", padding=True)
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


def seeded(generate: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Tensor]:
    torch.manual_seed(3)
    return generate(*args, max_new_tokens=NEW_TOKENS, **kwargs), torch.get_rng_state()


GREEDY: dict[str, dict[str, Any]] = {
    "greedy": {},
    "suppressed": {"suppress_tokens": [261, 400, 429]},
    "several ends": {"eos_token_id": [370, 335, 306]},
}
SAMPLED: dict[str, dict[str, Any]] = {
    "sampled": {"top_k": 0},
    "warped": {"temperature": 0.6, "top_k": 10, "top_p": 0.9},
    "cold": {"temperature": 0.3, "min_p": 0.1},
    "ends": {"temperature": 0.5, "eos_token_id": [385, 286]},
}
SETTINGS = {name: kwargs | {"do_sample": False} for name, kwargs in GREEDY.items()} | {
    name: kwargs | {"do_sample": True} for name, kwargs in SAMPLED.items()
}


@pytest.fixture(scope="module")
def plainly(shipped: Story) -> Callable[..., tuple[list[Any], Tensor, list[Any]]]:
    """Per settings: plain decoding's text, the generator's state behind it, and what a streamer is told."""

    @cache
    def decoded(name: str, rows: int, copies: int = 1) -> tuple[list[Any], Tensor, list[Any]]:
        streamer = Recorder()
        kwargs = encode(shipped, rows) | SETTINGS[name] | {"num_return_sequences": copies}
        text, state = seeded(shipped[0].generate, **kwargs, streamer=streamer if copies == 1 else None)
        return text.tolist(), state, streamer.tokens()

    return decoded


@pytest.mark.parametrize(
    ("name", "rows"), [*((name, 3) for name in SETTINGS), *((name, 1) for name in ("greedy", "sampled", "ends"))]
)
def test_every_way_writes_plain_text(
    name: str, rows: int, shipped: Story, emission: list[Any], plainly: Callable[..., Any]
) -> None:
    """The same text to the same streamer, and the same generator behind it."""
    model, kwargs = shipped[0], encode(shipped, rows) | SETTINGS[name]
    ours = Recorder() if rows == 1 or not kwargs["do_sample"] else None  # with one, sampled batches fall back
    plain, state, told = plainly(name, rows)
    text, our_state = seeded(lade.generate, model, **kwargs, config=CONFIG, streamer=ours)
    assert text.tolist() == plain
    assert torch.equal(our_state, state)
    assert ours is None or ours.tokens() == told
    assert len(emission) == 1
    assert lade.last_stats().fallback is None
    assert lade.last_stats().accepted_tokens > 0


@pytest.mark.parametrize("name", ["sampled", "ends"])
def test_samples_of_one_prompt(name: str, shipped: Story, emission: list[Any], plainly: Callable[..., Any]) -> None:
    model, kwargs = shipped[0], encode(shipped, 1) | SETTINGS[name] | {"num_return_sequences": 4}
    plain, state, _ = plainly(name, 1, copies=4)
    text, our_state = seeded(lade.generate, model, **kwargs, config=CONFIG)
    assert text.tolist() == plain
    assert torch.equal(our_state, state)
    assert len(emission) == 1


def test_steps_are_announced_before_their_tokens(shipped: Story, emission: list[Any]) -> None:
    """One `begin_step` per forward, the prefill's included, then what it accepted and one token more."""
    streamer = Recorder()
    lade.generate(
        shipped[0], **encode(shipped, 1), config=CONFIG, streamer=streamer, do_sample=False, max_new_tokens=NEW_TOKENS
    )
    prompt, *calls, end = streamer.calls
    assert prompt[1] == tuple(encode(shipped, 1)["input_ids"].shape)
    assert end == "end"
    starts = [index for index, call in enumerate(calls) if call == "step"]
    accepted = [after - start - 1 for start, after in zip(starts, [*starts[1:], len(calls)], strict=True)]
    assert starts[0] == 0
    assert len(starts) == lade.last_stats().steps + 1
    assert accepted[0] == 1
    assert min(accepted) == 1 < max(accepted)
    assert sum(accepted) == NEW_TOKENS


@pytest.mark.parametrize("until", [2, 9])
@pytest.mark.parametrize("sample", [True, False])
def test_a_streamer_that_gives_up(until: int, sample: bool, shipped: Story, emission: list[Any]) -> None:
    """Its exception comes out, and the generator stands where plain decoding would have left it."""
    states = []
    for generate in (shipped[0].generate, lambda **kwargs: lade.generate(shipped[0], config=CONFIG, **kwargs)):
        streamer = Recorder(until)
        with pytest.raises(KeyboardInterrupt):
            seeded(generate, **encode(shipped, 1), do_sample=sample, streamer=streamer)
        assert len(streamer.tokens()) == until
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    assert len(emission) == 1


# Parts


def test_text_grows_row_by_row() -> None:
    text = Text(torch.tensor([[0, 5], [6, 7]]))
    for token in range(10, 20):
        text.append(1, token)
    text.append(0, 99)
    assert text.of(0).tolist() == [[0, 5, 99]]
    assert text.of(1).tolist() == [[6, 7, *range(10, 20)]]


def test_text_does_not_touch_the_prompt() -> None:
    prompt = torch.tensor([[1, 2]])
    Text(prompt).append(0, 3)
    assert prompt.tolist() == [[1, 2]]


def test_rows_stream_in_lockstep() -> None:
    """A column goes out when every unfinished row has it; a finished row is padded."""
    streamer = Recorder()
    requests = [Request(row, [1], prompt_length=1, limit=9) for row in range(2)]
    stream = Stream(streamer, requests, pad=0)
    for row, token in ((0, 10), (0, 11), (1, 20)):
        requests[row].tokens.append(token)
        stream.flush()
    assert [call[2] for call in streamer.calls] == [[10, 20]]
    requests[1].finished = True
    stream.flush()
    assert [call[2] for call in streamer.calls] == [[10, 20], [11, 0]]
    requests[0].tokens.append(12)
    requests[0].finished = True
    stream.flush()
    stream.flush()
    assert [call[2] for call in streamer.calls] == [[10, 20], [11, 0], [12, 0]]


def test_no_streamer_is_fine() -> None:
    stream = Stream(None, [Request(0, [1, 2], prompt_length=1, limit=9)], pad=0)
    stream.begin_step()
    stream.flush()


def test_what_a_device_may_choose_by_itself() -> None:
    """What is chosen after all nodes at once, unless drafts were drawn."""
    requests, stream, text = [Request(0, [1], 1, 9)], Stream(None, [], 0), UnreadText(torch.device("cpu"))
    rule, noise, processors = HostRule(frozenset({3})), Noise(1, torch.device("cpu")), [TopKLogitsWarper(3)]
    ways = AtOnce(requests, stream, processors, rule, noise), AtOnce(requests, stream, None, rule, None)
    assert [way.choosing for way in ways] == [
        Choosing(requests, processors, noise, frozenset({3})),
        Choosing(requests, (), None, frozenset({3})),
    ]
    assert ProposedAtOnce(requests, stream, processors, rule, None).choosing is None
    assert TokenByToken(requests, stream, [], rule, text, None, Record(False, False)).choosing is None


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "TopKLogitsWarper": (3,),
    "SuppressTokensLogitsProcessor": ([3],),
    "InfNanRemoveLogitsProcessor": (),
    "LogitNormalization": (),
}


@pytest.mark.parametrize("kind", sorted(TEXT_BLIND, key=lambda kind: kind.__name__))
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_processors_that_may_run_before_a_node_is_reached(
    kind: Any, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scores may be anything."""
    monkeypatch.setattr("torch.distributions.Distribution._validate_args", True)  # torch.compile turns it off for good
    scores = torch.randn(2, 9, generator=torch.Generator().manual_seed(0))
    scores[0] = value
    processor = kind(*ARGUMENTS.get(kind.__name__, (0.5,)))
    if kind in PARTICULAR:
        with pytest.raises(ValueError, match="Expected parameter logits"):
            processor(torch.zeros(2, 1), scores)
        return
    alone = processor(torch.zeros(1, 1), scores[1:].clone())
    assert torch.equal(processor(torch.zeros(2, 1), scores)[1:], alone)


@pytest.mark.parametrize(
    ("processors", "together", "kind"),
    [
        ([], False, AtOnce),
        ([TopKLogitsWarper(3)], True, AtOnce),
        ([TopKLogitsWarper(3)], False, LevelByLevel),
        ([MinLengthLogitsProcessor(3, 0)], True, LevelByLevel),
        ([TopKLogitsWarper(3), EtaLogitsWarper(0.1)], True, TokenByToken),
    ],
)
def test_choices_after_all_nodes_at_once(shipped: Story, processors: list[Any], together: bool, kind: type) -> None:
    model, _ = shipped
    call = submission.prepared(model, torch.ones(1, 4, dtype=torch.long), max_new_tokens=3)
    call = dataclasses.replace(call, processors=LogitsProcessorList(processors))
    requests = [Request(0, [1], 1, 9)]
    record = Record.asked_by(call.generation_config)
    made = emission_for(call, requests, Stream(None, requests, 0), None, record, proposals=False, together=together)
    assert type(made) is kind
    assert chooses_ahead(call) == all(type(processor) not in PARTICULAR for processor in processors)


def test_a_request_that_has_ended_is_not_begun_again() -> None:
    """Its first error stays."""
    begun = list[Any]()

    class Raising(AtOnce):
        def begin(self, rows: Any, outputs: Any) -> None:
            begun.append([*rows])
            raise ValueError(len(begun))

    requests = [Request(row, [1], 1, 9) for row in range(2)]
    for request in requests:
        request.emission = Raising([request], Stream(None, [], 0), None, HostRule(frozenset()), None)
    outputs: Any = None
    verification.begin(requests[:1], roots(requests[:1]), outputs)
    verification.begin(requests, roots(requests), outputs)
    assert begun == [[0], [1]]
    assert [str(request.error) for request in requests] == ["1", "2"]
