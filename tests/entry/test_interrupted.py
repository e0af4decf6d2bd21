"""Steps of an engine that are interrupted anywhere: what decodes is ended with an error, all else is as it was."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest
from enginetexts import greedy, model_of, plain, words
from hypothesis import given, settings
from hypothesis import strategies as st

import lade
from lade.base.compiled import called_by
from lade.core.request import Request
from lade.drafters import compiling
from lade.target.prefixes import CHUNK

CONFIG = lade.LookaheadConfig(mode="auto", budget=16, adapt=False)
SLOTS, NEW = 2, 8
PROMPTS = [words(CHUNK + 6), words(5, seed=1), [*words(CHUNK), *words(9, seed=2)], words(3, seed=3)]
FAMILIES = ("llama", "mistral-sliding")
SCOPE = "__enter__", "__exit__"
MACHINE = {function.__code__ for function in called_by(entry.python for entry in compiling.ENTRIES)}


@contextmanager
def calls(at: int, interrupt: Callable[[], BaseException]) -> Iterator[list[int]]:
    """Counts the calls of our functions, where Python handles signals, and interrupts one.

    Not those that enter and leave scopes: what they undo stays, if a signal comes in these microseconds.
    """
    done = [0]

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and "/lade/" in code.co_filename and code not in MACHINE and code.co_name not in SCOPE:
            done[0] += 1
            if done[0] == at:
                raise interrupt()

    sys.setprofile(note)
    try:
        yield done
    finally:
        sys.setprofile(None)


def submitted(engine: lade.Engine) -> list[Request]:
    return [engine.submit(**greedy(prompt, NEW), tenant="ann") for prompt in PROMPTS]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    return model_of(request.param)


@pytest.fixture(scope="module")
def texts(model: Any) -> list[list[int]]:
    return [plain(model, prompt, NEW) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def total(model: Any) -> int:
    """Calls of an engine that is not interrupted."""
    with lade.Engine(model, CONFIG, slots=SLOTS) as engine:
        submitted(engine)
        with calls(0, KeyboardInterrupt) as done:
            engine.run()
    return done[0]


def run(engine: lade.Engine) -> None:
    """Until no request is left, which must take no more steps than requests have tokens."""
    for _ in range(sum(len(prompt) + NEW for prompt in PROMPTS)):
        if not engine.step():
            return
    pytest.fail("a request never ends")


# A generator that `any` or `all` does not read to its end is closed, which counts as a call: Python handles no signal
# there, and what is raised there is lost.
@pytest.mark.filterwarnings("ignore:Exception ignored in. .generator object .*genexpr")
@settings(max_examples=30)
@given(share=st.floats(0, 1), kind=st.sampled_from([KeyboardInterrupt, MemoryError]), bound=st.booleans())
def test_texts(
    model: Any, texts: Sequence[list[int]], total: int, share: float, kind: type[BaseException], bound: bool
) -> None:
    lade.drop_pools()
    with lade.Engine(model, CONFIG, slots=SLOTS, kv_bytes=1 << 22 if bound else None) as engine:
        requests = submitted(engine)
        with suppress(kind), calls(1 + int(share * total), lambda: kind("a signal")):
            run(engine)
        run(engine)
        failed = [request for request in requests if request.error is not None]
        assert len(failed) <= SLOTS
        for request, text in zip(requests, texts, strict=True):
            assert request.finished
            assert "a signal" in str(request.error) if request in failed else request.tokens == text
        again = submitted(engine)
        run(engine)
        assert [(request.tokens, request.error) for request in again] == [(text, None) for text in texts]


def test_a_text_that_ends_in_an_interrupted_step_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with lade.Engine(model_of("llama"), CONFIG) as engine:
        request, target = engine.submit(**greedy(PROMPTS[0], 2), tenant="ann"), engine._loop.target
        keep = target.keep

        def interrupted(*arguments: Any) -> None:
            keep(*arguments)
            raise KeyboardInterrupt

        assert engine.step()
        monkeypatch.setattr(target, "keep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.run()
        assert request.finished
        assert engine._prefixes is not None
        assert engine._prefixes.bytes == 0


def test_a_second_interrupt_while_the_first_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step lets go of what the first one had not."""
    with lade.Engine(model_of("llama"), CONFIG, slots=SLOTS) as engine:
        requests, loop = submitted(engine), engine._loop
        assert engine.step()

        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(loop.target, "keep", interrupted)
            patch.setattr(loop.admission, "release", interrupted)
            with pytest.raises(KeyboardInterrupt):
                engine.step()
        run(engine)
        for request in requests[:SLOTS]:
            assert str(request.error) == "a step was interrupted by KeyboardInterrupt()"
        assert [request.error for request in requests[SLOTS:]] == [None, None]
        for request, prompt in zip(requests[SLOTS:], PROMPTS[SLOTS:], strict=True):
            assert request.tokens == plain(engine.model, prompt, NEW)


def test_an_interrupt_as_a_step_begins() -> None:
    """No later step takes it for one that is still running."""
    with lade.Engine(model_of("llama"), CONFIG, slots=SLOTS) as engine:
        submitted(engine)

        def note(frame: FrameType, event: str, _: Any) -> None:
            if event == "return" and frame.f_code is type(engine._loop)._begin.__code__:
                sys.setprofile(None)
                raise KeyboardInterrupt

        sys.setprofile(note)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        run(engine)
