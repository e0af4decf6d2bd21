"""What a server counts for Prometheus. No text and no name of a user is in it."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

import lade

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own = self._registry
        self._requests = Counter("lade_requests", "HTTP requests by path and status.", ["path", "status"], registry=own)
        self._refused = Counter("lade_refused", "Requests refused because too many wait.", registry=own)
        self._seconds = Histogram(
            "lade_request_seconds", "Seconds from a request to its end.", ["path"], buckets=SECONDS, registry=own
        )
        self._first = Histogram(
            "lade_first_token_seconds", "Seconds from a request to its first token.", buckets=SECONDS, registry=own
        )
        self._prompt = Counter("lade_prompt_tokens", "Tokens of prompts.", registry=own)
        self._cached = Counter("lade_cached_tokens", "Tokens of prompts that a kept prefix held.", registry=own)
        self._new = Counter("lade_generated_tokens", "Tokens of answers.", registry=own)
        self._steps = Counter("lade_decoding_steps", "Steps that decoded, counted once for each text.", registry=own)
        self._drafts = {
            what: Counter(f"lade_{what}_draft_tokens", f"Draft tokens {what}, by source.", ["source"], registry=own)
            for what in ("proposed", "verified", "accepted")
        }

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Add a gauge that is read when it is asked for."""
        Gauge(name, about, registry=self._registry).set_function(value)

    def answered(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def began(self, seconds: float) -> None:
        """The first token of a request."""
        self._first.observe(seconds)

    def refused(self) -> None:
        self._refused.inc()

    def ended(self, request: lade.Request) -> None:
        """A text has ended."""
        self._prompt.inc(request.prompt_length)
        self._cached.inc(request.cached)
        self._new.inc(request.emitted)
        self._steps.inc(request.tally.lengths.total())
        for what, counter in self._drafts.items():
            for source, tokens in getattr(request.tally, what).items():
                counter.labels(source).inc(tokens)

    def page(self) -> bytes:
        return generate_latest(self._registry)
