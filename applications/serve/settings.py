"""The settings of a server, checked when they are made. Knows no model and no HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from lade.applications.serve.keys import Keys
from lade.files.regularfile import MEBIBYTE

LOOPBACK = "127.0.0.1"
CORPUS_TOKENS = 1_000_000  # which take about 100 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """How a server behaves.

    Attributes:
        model: the name under which the model is served.
        host, port: where it listens.
        keys: who may use it; `None` for everyone who reaches it.
        tenant_pools: whether the requests of a key share what drafting learned and the keys and values of their texts;
            without keys all requests are those of one tenant.
        corpus_tokens: the most tokens of the corpora that a key adds; 0 takes none.
        slots: the most texts that decode at once.
        waiting: the most texts that wait for a slot; further requests get status 429.
        connections: the most open connections. A further one takes the place of the one that has waited longest without
            a request; where all have requests, it gets status 503, but for /health.
        allow_origins: origins of web pages that may use the server; `*` for all.
        allow_hosts: names of this server in the Host header, beside its addresses, `localhost` and `host`.
        body_bytes: the most bytes of a request's body.
        head_seconds: the most seconds that a connection may be open without a request.
        body_seconds: the most seconds that a body may take to arrive.
        send_seconds: the most seconds that a client may take to read an event, or the rest of an answer.
        status_seconds: after so many seconds without a token a stream gets its status, which comes with the first token
            otherwise: a client that reads it meanwhile takes time from the forward of a short prompt.
        alive_seconds: after so many seconds without an event a stream gets a comment.
        stream_interval: seconds between the events of a stream, but for its first and last one and where a step takes
            longer; 0 for an event after each step.
        grace: seconds that running requests get to finish at shutdown.
    """

    model: str
    host: str = LOOPBACK
    port: int = 8000
    keys: Keys | None = None
    tenant_pools: bool = False
    corpus_tokens: int = CORPUS_TOKENS
    slots: int = 8
    waiting: int = 64
    connections: int = 512
    allow_origins: tuple[str, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    body_bytes: int = 8 * MEBIBYTE
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    send_seconds: float = 60.0
    status_seconds: float = 0.1
    alive_seconds: float = 15.0
    stream_interval: float = 0.05
    grace: float = 30.0

    @property
    def most_texts(self) -> int:
        """The most texts that decode or wait."""
        return self.slots + self.waiting

    def tenant(self, key: str | None) -> str | None:
        """The tenant of a request, from the name of its key."""
        if not self.tenant_pools:
            return None
        return "everyone" if key is None else f"key {key}"
