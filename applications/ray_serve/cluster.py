"""Replicas as a deployment of Ray Serve, in a Ray of their own on this machine. The one module that imports Ray."""

from __future__ import annotations

import asyncio
import logging
import re
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from lade.applications.ray_serve.replica import Exchange, Replica
from lade.applications.ray_serve.routing import Route, ranked
from lade.applications.serve.connection import REQUEST_NAME
from lade.applications.serve.errors import busy, internal, unavailable

if TYPE_CHECKING:
    from lade.applications.ray_serve.start import Replication
    from lade.applications.serve.service import Service

NAME, DEPLOYMENT = "lade", "Replica"
LOOPBACK = "127.0.0.1"
TEMPORARY = "/tmp"  # as Ray has it: sockets lie there, whose paths have at most 107 bytes
STORE = 80 << 20  # bytes of Ray's object store, the least it takes; messages do not lie there
TAKEN = 30.0  # seconds within which a replica takes a request
TOLD = 5.0  # seconds within which replicas tell what they counted
CHECKED = 5.0  # seconds between two checks of a replica's health
LOST = "the replica that answered has ended; send the request again"
QUIET = {"log_level": "WARNING", "enable_access_log": False}
log = logging.getLogger("lade.serve")


class TenantRouter(RequestRouter):
    """Ray Serve's choice of a replica, by `lade.applications.ray_serve.routing`."""

    def initialize_state(self, slots: int) -> None:
        self._slots, self._ongoing = slots, Counter[str]()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        named = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        route = None
        if pending_request is not None:
            route = pending_request.kwargs.get("route")
            pending_request.routing_context.should_backoff = True  # between two rounds in which none takes it
        order = ranked(route, {name: self._ongoing[name] for name in named}, self._slots)
        return [[named[name]] for name in order]

    def on_send_request(self, replica_id: ReplicaID) -> None:
        super().on_send_request(replica_id)
        self._ongoing[replica_id.unique_id] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        super().on_request_completed(replica_id, internal_request_id)
        self._ongoing[replica_id.unique_id] -= 1


class Cluster:
    """The replicas that run."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle.options(method_name="answer", stream=True)

    async def ask(self, exchange: Exchange, route: Route | None) -> AsyncGenerator[list[dict[str, Any]], None]:
        response = self._handle.remote(exchange, route=route)
        try:
            async with asyncio.timeout(TAKEN):
                await anext(response)
            async for messages in response:
                yield messages
        except TimeoutError as error:
            raise unavailable("no replica is ready") from error
        except RayActorError as error:
            log.warning("a replica has ended with request %s: %s", REQUEST_NAME.get(), type(error).__name__)
            raise unavailable(LOST) from error
        except BackPressureError as error:
            raise busy() from error
        except Exception as error:
            log.exception("a replica failed with request %s", REQUEST_NAME.get())
            raise internal() from error
        finally:
            response.cancel()

    async def running(self) -> int:
        states = (await asyncio.to_thread(serve.status)).applications[NAME].deployments[DEPLOYMENT].replica_states
        return int(states.get("RUNNING", 0))

    async def pages(self) -> list[tuple[str, str]]:
        told = await self._handle.broadcast("metrics").results_async(timeout_s=TOLD, return_exceptions=True)
        return [page for page in told if not isinstance(page, BaseException)]


@contextmanager
def running(build: Callable[[], Service], how: Replication) -> Iterator[Cluster]:
    """Start Ray and the replicas; end all its processes at the end.

    Args:
        build: makes the service of a replica, in its process.

    Raises:
        RuntimeError: Ray does not start, or no replica does.
    """
    short = TEMPORARY if Path(TEMPORARY).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="lade-ray-", dir=short, ignore_cleanup_errors=True) as folder:
        try:
            yield _start(build, how, Path(folder) / "ray")  # Ray opens its own folder to all users
        finally:
            ray.shutdown()


def _start(build: Callable[[], Service], how: Replication, folder: Path) -> Cluster:
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    ray.init(
        address="local",
        num_cpus=how.most,  # the unit of one replica
        include_dashboard=False,
        object_store_memory=STORE,
        logging_level="WARNING",
        _temp_dir=str(folder),
        _system_config={"enable_metrics_collection": False},
    )
    serve.start(proxy_location="Disabled", logging_config=QUIET | {"log_level": "CRITICAL"})
    share = min(1.0, ray.cluster_resources().get("GPU", 0) / how.most) if how.cuda else 0
    deployment = serve.deployment(
        Replica,
        name=DEPLOYMENT,
        ray_actor_options={"num_cpus": 1, "num_gpus": share},
        max_ongoing_requests=2 * how.waiting,  # the replica's own queue comes first, whose refusals are answers
        max_queued_requests=how.waiting,
        graceful_shutdown_timeout_s=how.grace,
        health_check_period_s=CHECKED,
        max_constructor_retry_count=1,
        logging_config=QUIET,
        request_router_config=RequestRouterConfig(
            request_router_class=TenantRouter, request_router_kwargs={"slots": how.slots}
        ),
        **_size(how),
    )
    try:
        return Cluster(serve.run(deployment.bind(partial(_built, build), _name), name=NAME, route_prefix=None))
    except RuntimeError as error:
        raise RuntimeError(f"the replicas do not start: {_reason() or error}") from error


def _reason() -> str:
    """The error that ended the replicas' start: the last one in Ray's report, which is a traceback."""
    report = serve.status().applications[NAME].deployments[DEPLOYMENT].message
    return (re.findall(r"^[\w.]+: (.+)$", report, re.MULTILINE) or [""])[-1]


def _size(how: Replication) -> dict[str, Any]:
    if how.most == how.least:
        return {"num_replicas": how.least}
    wanted = max(1, how.slots // 2)
    return {
        "autoscaling_config": {
            "min_replicas": how.least,
            "max_replicas": how.most,
            "target_ongoing_requests": wanted,
        }
    }


def _name() -> str:
    """Of the replica in whose process this is called."""
    return str(serve.get_replica_context().replica_tag)


def _built(build: Callable[[], Service]) -> Service:
    _listen_on_loopback()
    return build()


def _listen_on_loopback() -> None:
    """Ray Serve opens a port of each replica for calls by gRPC at all addresses, which is not used here."""
    from ray.serve._private import replica

    listen = getattr(replica, "add_port_to_grpc_server", None)
    if listen is not None:
        replica.add_port_to_grpc_server = lambda server, address: listen(server, f"{LOOPBACK}:0")
