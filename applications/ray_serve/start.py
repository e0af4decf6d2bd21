"""`lade serve --replicas`: sets what Ray reads as it is imported, then runs the front until a signal comes."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from lade.applications.exits import failing, interruptible

if TYPE_CHECKING:
    from lade.applications.serve.command import Loading
    from lade.applications.serve.service import Service
    from lade.applications.serve.settings import ServeSettings

EXTRA = "ray"
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # one machine: all ports are opened on loopback
    "RAY_AUTH_MODE": "token",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a device that is named by its number stays visible
}


@dataclass(frozen=True, slots=True)
class Replication:
    """How many replicas there are, and what each one takes.

    Attributes:
        least, most: replicas; their number follows the load between them.
        slots: requests that one decodes at once.
        waiting: requests that one holds, those that wait included.
        grace: seconds that its requests get where it is no longer needed.
        cuda: whether the replicas share the GPUs.
    """

    least: int
    most: int
    slots: int
    waiting: int
    grace: float
    cuda: bool


def check_extra() -> None:
    """An error that says what to install, where Ray is missing."""
    if find_spec(EXTRA) is None:
        raise click.ClickException("lade serve --replicas needs ray; pip install 'lade-decoding[serve,ray]'")


def serve_replicas(
    settings: ServeSettings,
    build: Callable[[ServeSettings, str, Loading], Service],
    path: str,
    loading: Loading,
    least: int,
    most: int,
) -> None:
    """Start the replicas and answer requests until a signal comes. Keys stay in this process.

    Args:
        build: loads the model and makes the service of one replica.
        least, most: replicas.
    """
    os.environ.update(ENVIRONMENT | {"RAY_AUTH_TOKEN": secrets.token_hex(32)})
    from lade.applications.ray_serve.cluster import running
    from lade.applications.ray_serve.front import Front
    from lade.applications.serve.server import Server

    how = Replication(least, most, settings.slots, settings.most_texts, settings.grace, loading.device == "cuda")
    own = replace(loading, threads=max(1, loading.threads // most))
    made = partial(build, replace(settings, keys=None), path, own)
    with interruptible(lambda: "the server has ended"), failing(RuntimeError), running(made, how) as cluster:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # behind the server's own handler, to end Ray
        front = Front(settings, cluster)
        Server(front.app, front).run()
