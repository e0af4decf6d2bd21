"""`lade serve`: its options become settings, and what is missing or wrong is told before a model loads."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import lade
from lade.applications.cli import main
from lade.applications.serve import command as module
from lade.applications.serve.settings import ServeSettings
from lade.memory.corpora import corpus_of
from lade.models.shipped import TARGET

KEY = "a-key-0123456789"
CHECK_ADDRESS = module.check_address


@pytest.fixture(autouse=True)
def any_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else listens on this machine."""
    monkeypatch.setattr(module, "check_address", lambda host, port: None)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command would serve."""
    found: list[Any] = []
    monkeypatch.setattr(module, "serve", lambda *arguments: found.extend(arguments))
    return found


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["serve", *arguments])


def test_the_defaults(asked: list[Any]) -> None:
    assert run().exit_code == 0
    settings, path, loading = asked
    assert settings == ServeSettings(model=TARGET)
    assert settings.host == "127.0.0.1"
    assert path == TARGET
    assert not loading.warm


def test_the_options(asked: list[Any], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(KEY)
    options = ["--api-key-file", str(tmp_path / "keys"), "--allow-origin", "https://page.test", "--allow-host", "box"]
    options += ["--stream-interval", "0.5", "--kv-bytes", "99", "--body-bytes", "77", "--warm"]
    options += ["--corpus", os.path.relpath(tmp_path / "keys")]
    assert run("stories260K", "--port", "9", "--max-batch", "3", *options).exit_code == 0
    settings, path, loading = asked
    assert (settings.model, settings.port, settings.slots) == ("stories260K", 9, 3)
    assert (settings.stream_interval, settings.body_bytes) == (0.5, 77)
    assert settings.keys.name(KEY) is not None
    assert settings.tenant_pools
    assert (settings.allow_origins, settings.allow_hosts) == (("https://page.test",), ("box",))
    assert (path, loading.kv_bytes, loading.warm) == ("stories260K", 99, True)
    assert loading.corpus == tmp_path / "keys"  # replicas may work in another folder


@pytest.mark.parametrize("other", [("--draft", "stories260K"), ("--mode", "lookahead")])
def test_a_corpus_that_nothing_would_read(other: tuple[str, str], asked: list[Any], tmp_path: Path) -> None:
    (tmp_path / "texts").touch()
    done = run("--corpus", str(tmp_path / "texts"), *other)
    assert done.exit_code == 2
    assert "--corpus must be given without --draft and without --mode lookahead" in done.output
    assert not asked


def test_corpora_of_clients(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas would not share them."""
    assert run("--corpus-tokens", "5").exit_code == 0
    assert asked[0].corpus_tokens == 5
    replicated: list[Any] = []
    monkeypatch.setattr(module.start, "check_extra", lambda: None)
    monkeypatch.setattr(module.start, "serve_replicas", lambda *arguments: replicated.extend(arguments))
    assert run("--replicas", "2").exit_code == run("--max-replicas", "2", "--corpus-tokens", "0").exit_code == 0
    assert replicated[0].corpus_tokens == replicated[6].corpus_tokens == 0
    done = run("--replicas", "2", "--corpus-tokens", "5")
    assert done.exit_code == 2
    assert "--corpus-tokens must be 0 with --replicas, which do not share what clients add" in done.output


def test_the_pulled_model_comes_first(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_pulled", lambda name: name == "smollm2-135m")
    run()
    assert asked[0].model == asked[1] == "smollm2-135m"


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "uvicorn" else object())
    done = run()
    assert done.exit_code == 1
    assert "lade serve needs uvicorn; pip install 'lade-decoding[serve]'" in done.output


@pytest.mark.parametrize("keys", [None, "short"])
def test_wrong_keys(asked: list[Any], tmp_path: Path, keys: str | None) -> None:
    if keys is not None:
        (tmp_path / "keys").write_text(keys)
    done = run("--api-key-file", str(tmp_path / "keys"))
    assert done.exit_code == 2
    assert "--api-key-file" in done.output
    assert not asked


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The services of models that load, up to where the port would be opened."""
    from lade.applications.serve import server

    found: list[Any] = []
    monkeypatch.setattr(server.Server, "run", lambda self: found.append(self.service))
    monkeypatch.setattr(module.logging, "basicConfig", lambda **settings: None)
    before = sys.getswitchinterval()
    yield found
    sys.setswitchinterval(before)
    for service in found:
        service.engine.close()


def test_it_serves(served: list[Any]) -> None:
    done = run("stories260K", "--host", "0.0.0.0", "--draft", "stories260K", "--threads", "1")
    assert done.exit_code == 0
    assert "no chat template" in done.output
    assert "--api-key-file asks for keys" in done.output
    assert served[0].settings.model == "stories260K"
    assert sys.getswitchinterval() == pytest.approx(module.SWITCH_SECONDS)


@pytest.mark.parametrize("mode", [None, "auto"])
def test_a_corpus_is_read(mode: str | None, served: list[Any], tmp_path: Path) -> None:
    lade.Corpus([[1, 2]]).save(tmp_path / "texts")
    more = [] if mode is None else ["--mode", mode]
    assert run("stories260K", "--corpus", str(tmp_path / "texts"), *more).exit_code == 0
    (service,) = served
    assert service.engine._drafter.corpus.tolist() == corpus_of([[1, 2]]).tolist()
    (tmp_path / "texts").write_text("no corpus")
    assert run("stories260K", "--corpus", str(tmp_path / "texts"), *more).exit_code == 1
    assert run("stories260K", "--corpus", str(tmp_path / "none"), *more).exit_code == 2


def test_a_model_that_is_not_there() -> None:
    done = run("no/such/model/at/all")
    assert done.exit_code == 2
    assert "path_or_name must be" in done.output


def test_an_address_at_which_nothing_can_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError("no model may be loaded")

    monkeypatch.setattr(module, "load_service", never)
    monkeypatch.setattr(module, "check_address", CHECK_ADDRESS)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("stories260K", "--port", str(port))
    assert done.exit_code == 2
    told = " ".join(done.output.split())
    assert f"an address of this machine and a free port of it, got 127.0.0.1 and {port}" in told
    CHECK_ADDRESS("127.0.0.1", port)
    nowhere = run("stories260K", "--host", "")
    assert (nowhere.exit_code, "--host" in nowhere.output) == (2, True), "all addresses are asked for by 0.0.0.0"


def test_a_model_that_reads_images(served: list[Any], llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its texts are served, too, where a package is missing that its processor needs."""
    assert run(str(llava), "--threads", "1").exit_code == 0
    monkeypatch.setattr("transformers.AutoProcessor.from_pretrained", lacks)
    done = run(str(llava), "--threads", "1")
    assert done.exit_code == 0
    assert "messages with images are refused: it needs torchvision\n" in done.output
    assert [service.planner.prompts.images is None for service in served] == [False, True]


def lacks(name: str, **others: Any) -> None:
    raise ImportError("it needs torchvision\nand says so at length")
