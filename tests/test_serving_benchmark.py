"""benchmarks/serving.py: what its client reads, how figures are judged, and the whole script on a real server."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import serving
import serving_client
import serving_measures
import serving_texts
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from serving_client import Answer, Event, events_of, in_turn
from serving_measures import Figure, figure, rate_of, turns

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(*events: Any) -> bytes:
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return b"%x\r\n%s\r\n" % (len(body), body)


def step(tokens: int) -> dict[str, Any]:
    return {"lade": {"tokens": tokens}, "choices": [{"text": "é" * tokens}]}


CHUNKS = [chunk(step(1)), chunk(step(2), step(3)), b"e\r\n: keep-alive\n\n\r\n", chunk({"usage": {}})]
WHOLE = HEAD + b"".join(CHUNKS) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@given(cuts=st.lists(st.integers(1, len(WHOLE) - 1), max_size=6, unique=True).map(sorted))
def test_events_come_with_their_last_byte(cuts: list[int]) -> None:
    """However the bytes are cut into pieces: piece n comes at n."""
    parts = [(float(n), WHOLE[a:b]) for n, (a, b) in enumerate(zip([0, *cuts], [*cuts, len(WHOLE)], strict=True))]
    found = list(events_of(parts))
    assert [event.tokens for event in found] == [1, 2, 3, 0]
    ends = [len(HEAD) + sum(map(len, CHUNKS[: n + 1])) for n in (0, 1, 1, 3)]
    assert [event.at for event in found] == [sum(cut < end for cut in cuts) for end in ends]


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 429 Too Many\r\n\r\n{}", WHOLE[:-5], HEAD + chunk({"error": {"message": "HTTP/1.1"}}) + b"0\r\n\r\n"],
)
def test_answers_that_are_none(answer: bytes) -> None:
    with pytest.raises(ConnectionError, match="HTTP"):
        list(events_of([(0.0, answer)]))


def test_times_of_an_answer() -> None:
    answer = Answer(1.0, [Event(at, step(tokens)) for at, tokens in ((2.0, 0), (3.0, 2), (5.0, 1), (5.0, 1), (6.0, 1))])
    assert (answer.first_seconds, answer.seconds, answer.tokens) == (2.0, 5.0, 5)
    assert (answer.gaps(), answer.gaps(since=4.0)) == ([2.0, 1.0], [1.0])
    assert answer.text == "é" * 5
    assert rate_of([answer, Answer(2.0, [Event(11.0, step(5))])]) == 1.0


def test_clients_ask_one_after_another() -> None:
    running, most = 0, 0

    async def ask() -> Answer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return Answer(0.0, [])

    assert len(asyncio.run(in_turn(3, [ask] * 7))) == 7
    assert most == 3


def test_figures() -> None:
    assert figure("a", [[1.0], [3.0], [2.0]], at_least=2.0) == Figure("a", 2.0, None, None, 3, at_least=2.0)
    held = [
        Figure("a", 2.0, 1.0, 3.0, 6, *asked).holds for asked in ((None, None), (2.0, None), (2.1, None), (None, 1.9))
    ]
    assert held == [True, True, False, False]
    assert str(Figure("a", 2.0, 1.0, 3.0, 6, at_most=1.5)).endswith("2.00 (1.00 to 3.00)  asked <= 1.5: BROKEN")
    assert [turns("abc", number) for number in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


def test_a_copy_that_does_not_end(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    for name in (*serving.CONFIGURATIONS, "model.safetensors"):
        (source / name).write_text('{"eos_token_id": 2, "a": 1}')
    copy = Path(serving.endless(source, tmp_path / "copy"))
    assert [json.loads((copy / name).read_text()) for name in serving.CONFIGURATIONS] == [
        {"eos_token_id": None, "a": 1}
    ] * 2
    assert (copy / "model.safetensors").resolve() == source / "model.safetensors"


@pytest.mark.slow
@pytest.mark.real
def test_the_whole_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of tokens and steps only: nothing is judged by time."""
    for name, value in {
        "LEVELS": (1, 8),
        "STREAMS": 2,
        "STREAM_TOKENS": 40,
        "LONG": 300,
        "PREFIX": 200,
        "PAIRS": 1,
    }.items():
        monkeypatch.setattr(serving_measures, name, value)
    monkeypatch.setattr(serving, "LEVELS", (1, 8))
    monkeypatch.setattr(serving_texts, "PAIRS", 1)
    arguments = ["--model", "lade-code-8M-draft", "--rounds", "1", "--tokens", "24", "--threads", "1", "--json"]
    result = CliRunner().invoke(serving.main, arguments, catch_exceptions=False)
    found = json.loads(result.stdout)
    assert set(found["measurements"]) == set(serving.MEASUREMENTS)
    figures = [each for part in found["measurements"].values() for each in part["figures"]]
    assert result.exit_code == (not all(each["holds"] for each in figures))
    rows = {name: part["rows"] for name, part in found["measurements"].items()}
    assert [(row["cold_cached"], row["cached"]) for row in rows["prefix"]] == [(0, 192)]
    (row,) = rows["prediction"]
    assert row["none_tokens"] == row["right_tokens"] == row["wrong_tokens"] == 24
    assert row["right_steps"] < row["none_steps"]
    (row,) = rows["corpus"]
    assert row["none_tokens"] == row["matching_tokens"] == row["other_tokens"] == 24
    assert row["matching_steps"] < row["none_steps"]


def test_wrong_measurements() -> None:
    result = CliRunner().invoke(serving.main, ["--only", "throughput,speed"])
    assert result.exit_code == 2
    assert "must be among throughput, " in result.output


def test_a_server_that_does_not_start() -> None:
    with pytest.raises(RuntimeError, match="did not start"), serving_client.served("--wrong"):
        pass
