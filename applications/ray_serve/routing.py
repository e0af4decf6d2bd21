"""Which replica answers a request: the tenant's own, so that its pools and prefixes stay where they were made.

Rendezvous hashing (Thaler and Ravishankar, 1998): each replica has a weight for each key, and the highest one has the
key. A replica that is lost moves its own keys alone, and no table is kept. Knows no Ray and no HTTP.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PREFIX = 1024  # characters of a prompt that count


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request belongs.

    Attributes:
        home: the key of its replica.
        overflow: the key of the order of all others, where that replica is full.
    """

    home: str
    overflow: str


def route_of(tenant: str | None, by_key: bool, body: bytes) -> Route | None:
    """The route of a request; `None` where replicas keep nothing for its tenant.

    Args:
        tenant: of its pools and prefixes.
        by_key: whether tenants are API keys. Without keys all requests are of one tenant, so that their prompts'
            beginnings are routed.
    """
    if tenant is None:
        return None
    prefixed = f"{tenant}\n{prefix_of(body)}"
    return Route(tenant if by_key else prefixed, prefixed)


def prefix_of(body: bytes) -> str:
    """The beginning of the prompt in a request's body, which the requests of a conversation share; else nothing."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(fields, dict):
        return ""
    prompt = fields.get("messages") or fields.get("prompt") or fields.get("input")
    opening = _opening(prompt) if isinstance(prompt, list) else str(prompt)[:PREFIX]
    return json.dumps([fields.get("instructions") or fields.get("system"), opening])[:PREFIX]


def _opening(parts: list[Any]) -> list[Any]:
    """Messages up to the first one of the user, or token ids."""
    for index, part in enumerate(parts[:PREFIX]):
        if isinstance(part, dict) and part.get("role") == "user":
            return parts[: index + 1]
    return parts[:PREFIX]


def ranked(route: Route | None, running: Mapping[str, int], most: int) -> list[str]:
    """The replicas that may answer a request, the best one first.

    The first is that of `route.home`, then follow the others in the order of `route.overflow`; those with `most`
    requests come behind the rest, the least loaded one first. Without a route the load alone decides.

    Args:
        running: the requests that each replica answers.
        most: requests that a replica decodes at once.
    """
    order = _order(route, list(running))
    full = max(most, 1) if route else 0
    return sorted(order, key=lambda replica: running[replica] if running[replica] >= full else 0)


def _order(route: Route | None, replicas: Sequence[str]) -> list[str]:
    if route is None or not replicas:
        return list(replicas)
    home = max(replicas, key=lambda replica: weight(route.home, replica))
    return sorted(replicas, key=lambda replica: (replica == home, weight(route.overflow, replica)), reverse=True)


def weight(key: str, replica: str) -> bytes:
    """A replica's weight for a key: the same in every process."""
    return hashlib.blake2b(f"{key}\n{replica}".encode("utf-8", "replace"), digest_size=8).digest()
