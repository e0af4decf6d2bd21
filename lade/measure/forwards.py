"""Counts and times the forwards of models with hooks, compiled forwards included. Knows no decoding method.

Hooks see the forwards of all threads, so a counted call must be the only one on its models. Counters may be nested.
Forwards with skipped sub-layers are drafts and are not counted; their time is host time, as a draft model's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from lade.target.attention import packed_rows
from lade.target.fused.watch import counting
from lade.target.skipping import is_skipping

COMPILED = "get_compiled_call"  # the method that gives transformers' generation its compiled forward


@dataclass(frozen=True, slots=True)
class Forwards:
    """The forwards of one `generate`: the first is the prefill, `steps` are the others.

    Attributes:
        per_forward: tokens per row of every forward, rounded up, the prefill first.
        seconds: of the whole call.
        prefill_seconds: up to the end of the first forward.
        model_seconds: in the forwards after the prefill; on CUDA the device's time.
        other_seconds: in the other models' forwards after the prefill.
        peak_bytes: peak memory allocated on the model's device, if asked for; `None` on a CPU.
    """

    per_forward: tuple[int, ...]
    seconds: float
    prefill_seconds: float
    model_seconds: float
    other_seconds: float = 0.0
    peak_bytes: int | None = None

    @property
    def steps(self) -> int:
        return len(self.per_forward) - 1

    @property
    def tokens(self) -> int:
        """Tokens of a row in all forwards after the prefill."""
        return sum(self.per_forward[1:])

    @property
    def widths(self) -> dict[int, int]:
        """Tokens of a row -> number of forwards after the prefill with that many."""
        return dict(sorted(Counter(self.per_forward[1:]).items()))

    @property
    def mean_tokens(self) -> float | None:
        """Mean tokens of a row per forward after the prefill; `None` if there was none."""
        return self.tokens / self.steps if self.steps else None

    @property
    def host_seconds(self) -> float:
        return max(0.0, self.seconds - self.prefill_seconds - self.model_seconds)


@dataclass(frozen=True, slots=True)
class _Forward:
    tokens: int
    begin: Any
    end: Any
    watch: _Watch

    @property
    def seconds(self) -> float:
        return self.watch.seconds(self.begin, self.end)


class ForwardCounter:
    """A context manager around one `generate`; `result()` is available after it.

    Args:
        model: forwards of this model are counted; it has a `device`, as models of transformers do.
        others: models that are timed separately, such as a draft model.
        peak: measure peak memory too; resets the device's peak.
        one_cache: count only forwards with the cache of the model's first one, not those that processors make.
    """

    def __init__(self, model: Any, *others: Any, peak: bool = False, one_cache: bool = False) -> None:
        self._seen: list[_Forward] = []
        self._watches = [_Watch(model, self._seen, one_cache), *(_Watch(each, self._seen) for each in others)]
        self._peak = peak and model.device.type == "cuda"
        self._bytes: int | None = None

    def __enter__(self) -> ForwardCounter:
        for watch in self._watches:
            watch.begin()
        own = self._watches[0]
        own.synchronize()
        if self._peak:
            torch.cuda.reset_peak_memory_stats(own.device)
        self._start = own.mark()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop = self._watches[0].mark()
        for watch in reversed(self._watches):
            watch.end()
            watch.synchronize()
        if self._peak:
            self._bytes = torch.cuda.max_memory_allocated(self._watches[0].device)

    def result(self) -> Forwards:
        """The counts and times.

        Raises:
            RuntimeError: the model was not called.
        """
        own = self._watches[0]
        first = next((index for index, forward in enumerate(self._seen) if forward.watch is own), None)
        if first is None:
            raise RuntimeError("no forward of the model was seen")
        later = self._seen[first + 1 :]
        return Forwards(
            per_forward=tuple(forward.tokens for forward in self._seen[first:] if forward.watch is own),
            seconds=own.seconds(self._start, self._stop),
            prefill_seconds=own.seconds(self._start, self._seen[first].end),
            model_seconds=sum(forward.seconds for forward in later if forward.watch is own),
            other_seconds=sum(forward.seconds for forward in later if forward.watch is not own),
            peak_bytes=self._bytes,
        )


class _Watch:
    """One model, its hooks, and its device's clock."""

    def __init__(self, model: Any, seen: list[_Forward], one_cache: bool = False) -> None:
        self._model, self._seen, self._one_cache = model, seen, one_cache
        self._cache: Any = None
        self.device = model.device
        self._cuda = self.device.type == "cuda"
        self._before: dict[str, Any] = {}
        self._running: tuple[int, Any] | None = None

    def begin(self) -> None:
        own = vars(self._model)
        self._before = {COMPILED: own[COMPILED]} if COMPILED in own else {}
        compiled = getattr(self._model, COMPILED, None)
        if compiled is not None:
            own[COMPILED] = self._timed(compiled)
        self._hook()

    def end(self) -> None:
        self._unhook()
        vars(self._model).pop(COMPILED, None)
        vars(self._model).update(self._before)

    def mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        # An event instead of a synchronisation, so that the host does not wait for each forward.
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end) / 1000 if self._cuda else end - begin)

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self.device)

    def _hook(self) -> None:
        self._hooks = [
            self._model.register_forward_pre_hook(self._starts, with_kwargs=True),
            self._model.register_forward_hook(self._ends),
        ]

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()

    @counting
    def _starts(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_skipping():
            return
        cache = kwargs.get("past_key_values")
        self._cache = cache if self._cache is None else self._cache
        if self._one_cache and cache is not self._cache:
            self._running = None
            return
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        self._running = -(-ids.shape[1] // packed_rows()), self.mark()

    @counting
    def _ends(self, module: Any = None, args: object = None, output: object = None) -> None:
        if not is_skipping() and self._running is not None:
            self._seen.append(_Forward(*self._running, self.mark(), self))

    def _timed(self, compiled_call: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
        """The compiled forward, timed from outside: hooks would be compiled with it, and break its graph."""

        def get(*args: Any) -> Callable[..., Any]:
            forward = compiled_call(*args)

            def run(**kwargs: Any) -> Any:
                self._unhook()
                try:
                    self._starts(self._model, (), kwargs)
                    output = forward(**kwargs)
                    self._ends()
                finally:
                    self._hook()
                return output

            return run

        return get
