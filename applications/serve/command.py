"""`lade serve`: its options, and what must be there before it starts. Loads the extra `serve` when it runs."""

from __future__ import annotations

import logging
import socket
import sys
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lade.applications.exits import Command, failing, interruptible, usage
from lade.applications.options import (
    MODEL,
    FiniteRange,
    corpus_option,
    flash_option,
    load_model,
    model_options,
    pack_option,
)
from lade.applications.ray_serve import start
from lade.applications.serve.settings import CORPUS_TOKENS
from lade.base.shown import first_line
from lade.config.settings import MODES
from lade.models.pulled import PULLABLE, is_pulled
from lade.models.shipped import TARGET

if TYPE_CHECKING:
    from lade.applications.serve.service import Service
    from lade.applications.serve.settings import ServeSettings

SWITCH_SECONDS = 0.0001  # Python's 5 ms would delay an event, and so all that follow it, by as much as a step takes
EXTRA = ("PIL", "fastapi", "httptools", "llguidance", "prometheus_client", "pydantic", "uvicorn")

SLOTS, FROM_0, FROM_1 = click.IntRange(1, 4096), click.IntRange(min=0), click.IntRange(min=1)
CORPORA = f"Most tokens of corpora that clients add, for each key.  [default: {CORPUS_TOKENS}; 0 with replicas]"
REPLICAS = "Copies of the model, on Ray Serve (extra ray); each has --max-batch, and they share --threads."


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How the model is loaded and drafted for."""

    dtype: str | None
    device: str
    threads: int
    quant: str | None
    pack: bool | None
    draft: str | None
    mode: str | None
    use_flash: bool
    corpus: Path | None
    kv_bytes: int | None
    warm: bool


@click.command("serve", cls=Command)
@click.argument("model", callback=MODEL, required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at; 0.0.0.0 for all.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0: any free one.")
@click.option("--api-key-file", type=click.Path(path_type=Path), help="A file with one API key per line.")
@click.option(
    "--allow-origin", "allow_origins", multiple=True, help="An origin whose web pages may use the server; * for all."
)
@click.option("--allow-host", "allow_hosts", multiple=True, help="A name of this machine that clients use.")
@click.option(
    "--tenant-pools/--no-tenant-pools",
    default=None,
    help="Requests of one key share drafts and prefixes.  [default: on with --api-key-file]",
)
@click.option("--max-batch", "slots", default=8, show_default=True, type=SLOTS, help="Texts at once.")
@click.option("--max-waiting", "waiting", default=64, show_default=True, type=FROM_0, help="Texts that wait.")
@click.option("--max-connections", "connections", default=512, show_default=True, type=FROM_1, help="Open connections.")
@click.option("--body-bytes", default=8 << 20, show_default=True, type=FROM_1, help="Most bytes of a request.")
@click.option("--kv-bytes", type=click.IntRange(min=1), help="Most bytes of keys and values.  [default: no bound]")
@click.option("--stream-interval", default=0.05, show_default=True, type=FiniteRange(0), help="Seconds between events.")
@click.option("--grace", default=30.0, show_default=True, type=FiniteRange(0), help="Seconds at shutdown.")
@click.option("--replicas", default=1, show_default=True, type=click.IntRange(1, 256), help=REPLICAS)
@click.option("--max-replicas", type=click.IntRange(1, 256), help="As many under load.  [default: --replicas]")
@click.option("--warm", is_flag=True, help="Compute the model's warm table first, or load it.")
@model_options
@pack_option
@click.option("--draft", callback=MODEL, help="A draft model with the same tokenizer.")
@click.option("--mode", type=click.Choice(MODES), help="How to draft without a draft model.  [default: auto]")
@flash_option
@corpus_option
@click.option("--corpus-tokens", type=FROM_0, help=CORPORA)
def command(
    *,
    model: str | None,
    api_key_file: Path | None,
    tenant_pools: bool | None,
    replicas: int,
    max_replicas: int | None,
    corpus_tokens: int | None,
    **options: Any,
) -> None:
    """Serve MODEL over HTTP in OpenAI's format (/v1/chat/completions, /v1/completions, /v1/responses) and in
    Anthropic's (/v1/messages).

    MODEL is a model that ships or was pulled, a folder or a hub name; smollm2-135m where it was pulled, else the small
    code model that ships. Needs the extra: pip install 'lade-decoding[serve]'.
    """
    check_extra()
    most = replicas if max_replicas is None else max_replicas
    if most < replicas:
        raise click.BadParameter(f"must be at least --replicas, {replicas}, got {most}", param_hint="'--max-replicas'")
    if most > 1:
        start.check_extra()
        if corpus_tokens:
            raise click.UsageError("--corpus-tokens must be 0 with --replicas, which do not share what clients add")
    from lade.applications.serve.keys import Keys
    from lade.applications.serve.settings import ServeSettings

    with usage("--api-key-file"):
        keys = None if api_key_file is None else Keys.of_file(api_key_file)
    if options["corpus"] is not None and (options["draft"] is not None or options["mode"] == "lookahead"):
        raise click.UsageError("--corpus must be given without --draft and without --mode lookahead")
    path = model or default_model()
    loading = Loading(**{field.name: options.pop(field.name) for field in fields(Loading)})
    settings = ServeSettings(
        model=Path(path).name if Path(path).is_dir() else path,
        keys=keys,
        tenant_pools=keys is not None if tenant_pools is None else tenant_pools,
        corpus_tokens=(0 if most > 1 else CORPUS_TOKENS) if corpus_tokens is None else corpus_tokens,
        **options,
    )
    check_address(settings.host, settings.port)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    if settings.keys is None and settings.host not in ("127.0.0.1", "localhost", "::1"):
        click.echo("everyone who reaches this address may use the server; --api-key-file asks for keys", err=True)
    if most > 1:
        start.serve_replicas(settings, load_service, path, loading, replicas, most)
    else:
        serve(settings, path, loading)


def check_extra() -> None:
    """An error that says what to install, where a package is missing."""
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise click.ClickException(f"lade serve needs {', '.join(missing)}; pip install 'lade-decoding[serve]'")


def check_address(host: str, port: int) -> None:
    """UsageError where nothing can listen at this address, before a model is loaded; port 0 is any free one."""
    if not host:
        raise click.BadParameter("must be an address or a name, got ''", param_hint="'--host'")
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
                trial.bind(address)
    except OSError as error:
        allowed = "--host and --port must be an address of this machine and a free port of it"
        raise click.UsageError(f"{allowed}, got {host} and {port} ({error.strerror})") from error


def default_model() -> str:
    """The pulled model, or the one that ships."""
    return next(filter(is_pulled, PULLABLE), TARGET)


def serve(settings: ServeSettings, path: str, loading: Loading) -> None:
    """Load the model and answer requests until a signal comes."""
    from lade.applications.serve.app import create_app
    from lade.applications.serve.server import Server

    service = load_service(settings, path, loading)
    with interruptible(lambda: "the server has ended"):
        Server(create_app(service), service).run()


def load_service(settings: ServeSettings, path: str, loading: Loading) -> Service:
    """The model, and a service on it that is not started yet."""
    import torch

    import lade
    from lade.applications.serve.build import build_service
    from lade.applications.serve.openmp import release_threads
    from lade.applications.serve.prompts import NOTICE

    sys.setswitchinterval(SWITCH_SECONDS)
    torch.set_num_threads(loading.threads)
    place: dict[str, Any] = {"dtype": loading.dtype, "device": loading.device, "pack": loading.pack}
    model, tokenizer = load_model(path, quant=loading.quant or None, **place)
    with failing(OSError, ValueError, RuntimeError):
        if loading.warm:
            lade.warm_up(model, tokenizer=tokenizer)
        method = None
        if loading.draft is not None:
            method = lade.DraftModel(load_model(loading.draft, **place)[0])
        lade.config_lade(USE_FLASH=loading.use_flash, CORPUS=loading.corpus)
        config = None
        if loading.mode is not None:
            config = lade.LookaheadConfig(mode=loading.mode, flash=loading.use_flash, corpus=loading.corpus)
        engine: dict[str, Any] = {"config": config, "method": method, "kv_bytes": loading.kv_bytes}
        service = build_service(settings, model, tokenizer, processor=image_processor(path), **engine)
    if not service.planner.prompts.has_template:
        click.echo(NOTICE, err=True)
    release_threads()
    return service


def image_processor(path: str) -> Any:
    """The model's processor of images; `None` where it has none, or one that needs a package that is missing, of which
    the terminal is told."""
    from lade.models.processor import load_processor

    try:
        return load_processor(path)
    except ImportError as error:
        click.echo(f"messages with images are refused: {first_line(error)}", err=True)
        return None
