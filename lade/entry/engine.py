"""An engine that outlives a call: requests of one model that come and go, with one forward per step for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from lade.base.arguments import Streamer, check_integer, check_model
from lade.base.shown import invalid
from lade.base.wrappers import unwrapped
from lade.config.settings import LookaheadConfig, Settings
from lade.core.drafter import Drafter
from lade.core.request import Request
from lade.drafters import compiling
from lade.drafters.factory import cost_for, drafter_for, pace_for, static_pace
from lade.engine.loop import DecodeLoop
from lade.engine.method import Method
from lade.engine.planning import STEP_TOKENS
from lade.engine.rounds import drafts_on_device, rounds_of
from lade.engine.target import engine_target
from lade.entry.beside import is_read_at_once, prefill_of, prefixes_of
from lade.entry.options import Arguments
from lade.entry.reference import corpus_given
from lade.entry.route import reason_for_plain
from lade.entry.submission import Submission, check_memory, greedy, trial
from lade.facts.precision import is_offloaded
from lade.facts.sharding import tensor_parallel
from lade.memory.corpusfile import Corpus
from lade.memory.pools import check_tenant
from lade.pace.pace import WholeBudget
from lade.pace.reading import WHOLE, ReadingPace
from lade.static.lasting import LastingTarget, readable
from lade.target.budget import KVBudget
from lade.target.call import Call
from lade.target.empty import empty_target
from lade.target.fused.decoder import is_compiled
from lade.target.model import HFTarget
from lade.target.owncache import OwnCache, check_cache
from lade.target.prefixes import PrefixCache
from lade.target.probe import probed_reason
from lade.target.verdicts import packs

SLOTS, MOST_SLOTS = 8, 4096
PREFIX_BYTES = 1 << 28
LEVEL = 512  # tokens; slots without a bound of bytes get multiples of it, so that attention takes their rows together


class Engine:
    """Decodes requests of one model that may arrive, be cancelled and finish at any time.

    Every step is one forward for all requests: prompts are read in chunks beside the drafts of the others. The text of
    a request is that of `model.generate` for this prompt alone, whatever decodes beside it (in float32; in half
    precision near-ties may fall otherwise). What a request's processors, criteria or streamer raise ends it alone and
    is its `error`. What interrupts a step (Ctrl-C, no memory) ends the requests that decode, with an error that names
    it, and `step` raises it; those that wait are decoded by later steps.

    `submit`, `cancel` and `drop_prefixes` may be called by any thread; `step`, `run` and `close` belong to one thread.

    Args:
        model: a transformers causal language model. It must not be changed while requests decode; between them its
            weights and adapters may be.
        config: settings; `None` for the process-wide ones.
        method: draft with a model instead (`lade.DraftModel`, ...); its drafts are never drawn, so that a seed gives
            plain decoding's text.
        slots: the most requests that decode at once, 1 to 4,096; further ones wait.
        prefix_bytes: the most bytes of keys and values that stay after their requests, for later requests of the same
            tenant whose prompts begin with the same tokens, 64 at a time: those are not computed again. All tenants
            share the bytes: the one that holds the most loses its least recently used first. Nothing of a request
            without a tenant is kept; 0 keeps nothing.
        kv_bytes: the most bytes of keys and values of the requests that decode; `None` for no bound. A request waits
            until the bytes that its prompt and answer may come to need are free, first come, first served; one that
            needs more than all of them is refused. Not counted are `prefix_bytes`, a draft model's keys and values,
            a copy of one layer's while it grows, and one of a prompt with images while it is read.

    Raises:
        ValueError: an argument is wrong, or the model cannot decode draft trees.

    Examples:
        >>> with lade.Engine(model) as engine:
        ...     request = engine.submit(input_ids, max_new_tokens=64)
        ...     while engine.step():
        ...         pass
        ...     text = tokenizer.decode(request.tokens)
    """

    def __init__(
        self,
        model: Any,
        config: LookaheadConfig | None = None,
        *,
        method: Method | None = None,
        slots: int = SLOTS,
        prefix_bytes: int = PREFIX_BYTES,
        kv_bytes: int | None = None,
    ) -> None:
        _check(model, slots, prefix_bytes, kv_bytes)
        self.model, self.slots = model, slots
        options = Arguments(config, method, None, None).options(model)
        self._config, self._method, settings = options.config, options.method, options.config.settled()
        if settings.workers > 1:
            raise invalid("workers", "1 for an engine, whose requests arrive in one process", settings.workers)
        self._tenant = settings.tenant
        call = trial(model)
        reason = self._reason(call, fuse=True)
        if reason is not None:
            raise invalid("model", f"one that decodes draft trees in {slots} slots ({reason})", model)
        whole = unwrapped(model)
        self._target = target = empty_target(whole, packs(whole, slots), settings.flash)
        other = "a method drafts with a model" if self._method is not None else None
        bounded = None if kv_bytes is None else "kv_bytes bounds the slots, which would be of one capacity"
        self._steps = engine_target(target, settings, slots, other or bounded)
        self._may_fuse = target.packed and target.fused is None and not self._static
        self._pace = None if self._method is not None else self._pace_of(settings)
        self._drafter = self._drafter_of(settings, call)
        if kv_bytes is None:
            target.cache.level(LEVEL)
        self._prefixes = PrefixCache(target, prefix_bytes) if prefix_bytes else None
        self._budget = None if kv_bytes is None else _budget(target, kv_bytes)
        self._together = drafts_on_device(self._steps, settings)
        self._loop = self._loop_of(settings)

    @property
    def _static(self) -> bool:
        return isinstance(self._steps, LastingTarget)

    def _pace_of(self, settings: Settings) -> WholeBudget:
        model = self._target.model
        return static_pace(model, settings) if self._static else pace_for(model, settings, packed=self._steps.packed)

    def _drafter_of(self, settings: Settings, call: Call) -> Drafter:
        if self._method is not None:
            return self._method.drafter(greedy(call), self._target)
        if settings.mode == "auto":
            compiling.begin()  # here no prompt's memory is in the way, and the first request finds the code ready
        return drafter_for(self._target.model, settings, packed=self._steps.packed, pace=self._pace)

    def _loop_of(self, settings: Settings) -> DecodeLoop:
        steps, drafter = self._steps, self._drafter
        return DecodeLoop(
            steps,
            drafter,
            self.slots,
            prefixes=None if self._prefixes is None else readable(self._prefixes, steps),
            budget=self._budget,
            reading=ReadingPace() if settings.adapt else WHOLE,
            rounds=rounds_of(self._target.model, settings, steps, drafter),
        )

    @property
    def not_static(self) -> str | None:
        """Why steps are not static, where they would be wanted; `None` where they are, or nobody wants it."""
        return self._target.clock.not_static

    @property
    def kv_tokens(self) -> int | None:
        """The most tokens of prompt and answer whose keys and values fit into `kv_bytes`; `None` for no bound."""
        return None if self._budget is None else self._budget.tokens

    def _reason(self, call: Call, fuse: bool = False) -> str | None:
        """Why a call cannot be decoded here, or `None`.

        Args:
            fuse: as of `lade.target.probe.probed_reason`; not for a request, which any thread may submit.
        """
        if tensor_parallel(self.model) > 1:
            return "its weights are sharded over several processes: lade.generate decodes with it"
        reason = reason_for_plain(call, rows=self.slots, fuse=fuse)
        return self._method.reason(call) if reason is None and self._method is not None else reason

    def submit(
        self,
        input_ids: torch.Tensor,
        *,
        seed: int | None = None,
        streamer: Streamer | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        reference: Any = None,
        corpus: Corpus | str | os.PathLike[str] | None = None,
        tenant: str | None = None,
        drafts: bool = True,
        logprobs: int | None = None,
        prompt_logprobs: bool = False,
        forced: Callable[[Sequence[int]], Sequence[int]] | None = None,
        **generate_kwargs: Any,
    ) -> Request:
        """Decode a prompt as soon as a slot is free.

        Args:
            input_ids: [1, P] token ids.
            seed: of the request's own generator where it samples: the text is that of `torch.manual_seed(seed)` and
                `model.generate`. `None` for a random one.
            streamer: receives the generated tokens, and `end()` when the request ends without an error.
            tokenizer: the model's; needed with `stop_strings`.
            reference: a text that the output may repeat, as token ids; for mode "auto".
            corpus: texts that the output may repeat, or their file; for mode "auto". `None` for the settings' ones.
            tenant: shares what drafting learned, and keys and values of texts (`prefix_bytes`), with the requests of
                this tenant; `None` for the settings' one.
            drafts: whether to draft for this request, which takes one forward per token otherwise, and from which
                drafting learns nothing then.
            logprobs: note in `request.logprobs` the model's log probability of each token, and of this many most likely
                ones beside it, before processors and temperature. `None` notes nothing.
            prompt_logprobs: note those of the prompt's tokens too. No kept prefix is used then.
            forced: the text so far, as token ids -> token ids that are sure to follow, as a grammar knows them. They
                are drafted; the model's choice still decides. For mode "auto"; what it raises ends the request alone.
            generate_kwargs: the other arguments of `model.generate` for greedy decoding and sampling of one sequence.
                A prompt with images, videos or sound (`pixel_values`, ...) is read by one forward of its own, for which
                other requests wait, unless its beginning up to the last image is kept; behind videos and sound nothing
                is. `past_key_values` holds the beginning of the prompt, and is extended in place when the request ends
                without an error; it is neither read nor kept for the tenant.

        Returns:
            The request: its `tokens` grow (prompt first) until it has `finished`.

        Raises:
            ValueError: an argument is wrong; nothing was done.
            RuntimeError: the engine is closed.
            Exception: what the streamer raises for the prompt, or the model as transformers lets it encode images;
                nothing is decoded.
        """
        tenant = self._tenant if tenant is None else tenant
        texts = reference, corpus_given(corpus, self._config, self.model)
        own = *texts, tenant, drafts, logprobs, prompt_logprobs, forced, self._together
        submission = Submission(self.model, self._config, seed, streamer, tokenizer, *own)
        request = self._request(submission, input_ids, generate_kwargs)
        self._loop.submit(request)
        return request

    def _request(self, submission: Submission, input_ids: torch.Tensor, generate_kwargs: dict[str, Any]) -> Request:
        call = submission.call(input_ids, generate_kwargs)
        reason = self._reason(call)
        if reason is not None:
            raise ValueError(f"the arguments must let draft trees be decoded, got some that do not: {reason}")
        cache = generate_kwargs.get("past_key_values")
        at_once = is_read_at_once(call, cache, submission.prompt_logprobs)
        if cache is not None:
            check_cache(cache, call, self._target.cache)
        if self._budget is not None:
            check_memory(call, self._budget)
        request = submission.request(call)
        request.undisturbed &= self._method is None  # one may skip layers of this model
        if at_once:
            request.prefixes = prefixes_of(call, self._prefixes, self._steps)
            request.prefill = prefill_of(call, self._steps)
        elif cache is not None:
            request.prefixes = readable(OwnCache(self._target, cache), self._steps)
        return request

    def step(self) -> bool:
        """One forward for all requests. Returns whether any request is left.

        Raises:
            RuntimeError: another thread is in `step`, or the engine is closed.
            BaseException: what interrupts the step.
        """
        with torch.no_grad():
            if self._may_fuse and is_compiled():
                self._fuse()
            return self._loop.step()

    def _fuse(self) -> None:
        """Fuse decoder layers where they can be, now that their loops are compiled; in the thread that computes."""
        self._may_fuse, target = False, self._target
        probed_reason(target.model, target.masks.kinds, target.position_limit)
        target.fuse()
        if self._pace is not None and target.fused is not None:
            self._pace.use(cost_for(target.model, packed=True))

    def run(self) -> None:
        """Step until no request is left."""
        while self.step():
            pass

    def cancel(self, request: Request) -> None:
        """End a request before the next step; its tokens so far stay. Nothing happens if it has finished.

        Raises:
            ValueError: it is no request.
        """
        if not isinstance(request, Request):
            raise invalid("request", "one that `submit` returned", request)
        self._loop.cancel(request)

    def drop_prefixes(self, tenant: str | None = None) -> None:
        """Drop the keys and values that are kept for a tenant's later requests; `None` for those of all tenants.

        Texts that decode now are not kept either. Any thread may call this. What drafting learned is dropped by
        `lade.drop_pools`.

        Raises:
            ValueError: the tenant is not a name.
        """
        if tenant is not None:
            check_tenant(tenant)
        if self._prefixes is not None:
            self._prefixes.drop(tenant)

    def close(self) -> None:
        """End all requests and free their memory. A second call does nothing.

        Raises:
            RuntimeError: inside a step, such as from a streamer; the engine stays open.
        """
        self._loop.close()
        if self._prefixes is not None:
            self._prefixes.drop()
        self._drafter.end()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check(model: Any, slots: int, prefix_bytes: int, kv_bytes: int | None) -> None:
    """The arguments of an `Engine`."""
    check_model("model", model)
    if is_offloaded(unwrapped(model)):
        raise invalid("model", "on a device, not offloaded (device 'meta')", model)
    allowed = f"an integer of at least 1 and at most {MOST_SLOTS}"
    check_integer("slots", slots, allowed, lambda value: 1 <= value <= MOST_SLOTS)
    check_integer("prefix_bytes", prefix_bytes, "an integer of at least 0", lambda value: value >= 0)
    if kv_bytes is not None:
        check_integer("kv_bytes", kv_bytes, "None or an integer of at least 1", lambda value: value >= 1)


@torch.no_grad()
def _budget(target: HFTarget, kv_bytes: int) -> KVBudget:
    return KVBudget.of(target, kv_bytes, STEP_TOKENS)
