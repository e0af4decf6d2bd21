"""`lade serve --replicas 2` as it is: Ray, two replicas, requests over HTTP, and one replica that is killed."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from served import NAME, PROMPT, events

from lade.applications.ray_serve.replica import HEADER

pytestmark = [pytest.mark.real, pytest.mark.slow]

KEYS = [f"key-of-tenant-{index:03}" for index in range(16)]
LONG = {"prompt": PROMPT, "max_tokens": 1200, "temperature": 0, "stream": True, "logit_bias": {"0": -100}}
LONG |= {"lade": {"speculation": False}}  # as many steps as tokens
START, GRACE, END = 300, 60, 120  # seconds, of which a busy machine takes some


class Running:
    """The command, in a session of its own."""

    def __init__(self, folder: Path) -> None:
        (folder / "keys").write_text("\n".join(KEYS))
        command = [sys.executable, "-m", "lade", "serve", NAME, "--replicas", "2", "--port", "0", "--dtype", "float32"]
        self.process = subprocess.Popen(
            [*command, "--api-key-file", str(folder / "keys"), "--max-batch", "16", "--grace", str(GRACE)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.seen = list[psutil.Process]()

    def begin(self) -> None:
        assert self.process.stdout is not None
        late, lines, found = threading.Timer(START, self.process.terminate), list[str](), None
        late.start()
        for line in self.process.stdout:
            lines.append(line)
            if found := re.search(r"is served at (\S+)", line):
                break
        late.cancel()
        if not found:
            pytest.fail("".join(lines))
        self.url, self.seen = found[1], self.processes()

    def processes(self) -> list[psutil.Process]:
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def replicas(self) -> list[psutil.Process]:
        return [each for each in self.processes() if each.cmdline()[:1] and "ServeReplica" in each.cmdline()[0]]

    def folder(self) -> Path:
        """Where the command keeps its sockets and logs."""
        found = {re.search(r"/tmp/lade-ray-\w+", " ".join(each.cmdline())) for each in self.processes()}
        (name,) = {each[0] for each in found if each is not None}
        return Path(name)

    def end(self) -> None:
        """End the command; kill whatever is left."""
        if self.process.poll() is None:
            self.seen += self.processes()
            self.process.terminate()
        _, left = psutil.wait_procs(self.seen, END)
        for each in left:
            each.kill()
        self.process.wait(END)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    found = Running(tmp_path_factory.mktemp("ray"))
    try:
        found.begin()
        yield found
    finally:
        found.end()


def client_of(running: Running, tenant: int) -> httpx2.AsyncClient:
    headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
    return httpx2.AsyncClient(base_url=running.url, headers=headers, timeout=START)


async def ask(running: Running, tenant: int, **fields: Any) -> tuple[str, dict[str, Any]]:
    """The replica that answered, and its answer."""
    async with client_of(running, tenant) as client:
        answer = await client.post("/v1/completions", json={"prompt": PROMPT, "temperature": 0} | fields)
    assert answer.status_code == 200, answer.text
    return answer.headers[HEADER.decode()], answer.json()


async def stream(running: Running, tenant: int, begun: asyncio.Event) -> tuple[str, str]:
    """The replica that answered, and all that it sent."""
    parts: list[str] = []
    async with client_of(running, tenant) as client, client.stream("POST", "/v1/completions", json=LONG) as answer:
        async for part in answer.aiter_text():
            parts.append(part)
            begun.set()
    return answer.headers[HEADER.decode()], "".join(parts)


async def both_run(running: Running) -> None:
    """Wait until two replicas answer."""
    async with client_of(running, 0) as client:
        while len(set(re.findall(r'replica="(\w+)"', (await client.get("/metrics")).text))) < 2:
            await asyncio.sleep(0.05)


def test_tenants_keep_their_replica(running: Running) -> None:
    """All tenants ask at the same time, each one again and again; what it sent before is found again."""

    async def tenant(index: int) -> list[tuple[str, dict[str, Any]]]:
        return [await ask(running, index, prompt=PROMPT * 8, max_tokens=4) for _ in range(20)]

    async def all_tenants() -> list[list[tuple[str, dict[str, Any]]]]:
        await both_run(running)
        return await asyncio.gather(*map(tenant, range(len(KEYS))))

    found = asyncio.run(asyncio.wait_for(all_tenants(), START))
    homes = [Counter(name for name, _ in answers) for answers in found]
    kept = sum(max(counts.values()) for counts in homes) / sum(map(Counter.total, homes))
    print(f"affinity {kept:.1%}")
    assert kept >= 0.95
    assert len({counts.most_common(1)[0][0] for counts in homes}) == 2
    assert all(cached_of(answers[-1]) > 0 for answers in found)
    assert len({answer["choices"][0]["text"] for answers in found for _, answer in answers}) == 1


def cached_of(answered: tuple[str, dict[str, Any]]) -> int:
    return int(answered[1]["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_killed_replica_ends_its_own_requests_alone(running: Running) -> None:
    async def kill() -> tuple[list[tuple[str, str]], list[tuple[str, dict[str, Any]]]]:
        await both_run(running)
        begun = [asyncio.Event() for _ in KEYS]
        streams = [asyncio.create_task(stream(running, index, event)) for index, event in enumerate(begun)]
        await asyncio.gather(*(event.wait() for event in begun))
        assert not any(each.done() for each in streams)
        running.replicas()[0].kill()
        others = await asyncio.gather(*(ask(running, index, max_tokens=4) for index in range(len(KEYS))))
        found = await asyncio.gather(*streams)
        await both_run(running)
        running.seen += running.processes()
        return found, others

    found, others = asyncio.run(asyncio.wait_for(kill(), START))
    ends = defaultdict(list)
    for name, text in found:
        ends[name].append(events(text)[-1])
    assert len(ends) == 2
    lost, left = sorted(ends, key=lambda name: ends[name][0] == "[DONE]")
    print(f"lost with the replica: {len(ends[lost])} streams; finished: {len(ends[left])}")
    assert all(end == "[DONE]" for end in ends[left])
    assert all(end["error"]["type"] == "server_error" for end in ends[lost])
    assert lost not in {name for name, _ in others}
    assert len({text for name, text in texts_of(found) if name == left}) == 1


def texts_of(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The text of each stream that finished."""
    whole = [(name, events(text)[:-1]) for name, text in found if "[DONE]" in text]
    return [(name, "".join(event["choices"][0]["text"] for event in parts)) for name, parts in whole]


def test_nothing_listens_to_other_machines(running: Running) -> None:
    """No port, no secret on a command line, no file for other users."""
    for process in running.processes():
        open_to = {each.laddr.ip for each in process.net_connections() if each.status == psutil.CONN_LISTEN}
        assert open_to <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, process
        assert not any(key in argument for key in KEYS for argument in process.cmdline())
        token = process.environ().get("RAY_AUTH_TOKEN")
        assert token is None or token not in " ".join(process.cmdline())
    assert running.folder().stat().st_mode & 0o077 == 0
    used = sum(process.memory_full_info().pss for process in running.processes())
    print(f"memory {used / 2**20:.0f} MiB")


def test_a_signal_ends_everything(tmp_path: Path) -> None:
    running = Running(tmp_path)
    try:
        running.begin()
        processes, folder = running.processes(), running.folder()

        async def last() -> tuple[str, str]:
            begun = asyncio.Event()
            task = asyncio.create_task(stream(running, 0, begun))
            await begun.wait()
            running.process.send_signal(signal.SIGTERM)
            return await task

        _, text = asyncio.run(asyncio.wait_for(last(), START))
        assert running.process.wait(END) == 0
        _, alive = psutil.wait_procs(processes[1:], END)
        assert not alive
        assert not folder.exists()
        assert events(text)[-1] == "[DONE]"
    finally:
        running.end()


def test_a_model_that_does_not_load(tmp_path: Path) -> None:
    """The replicas' error is told, without a traceback of the command."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nothing"}))
    command = [sys.executable, "-m", "lade", "serve", str(tmp_path), "--replicas", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START)
    assert done.returncode == 1
    assert f"Error: the replicas do not start: {tmp_path} does not load: " in done.stderr
    assert "Traceback" not in done.stderr
