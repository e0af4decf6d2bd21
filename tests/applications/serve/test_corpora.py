"""Corpora that clients add: each key's requests draft from its own, and no text changes."""

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from served import CONFIG, PROMPT, Served, serving

import lade
from lade.applications.serve import corpora as module
from lade.applications.serve.corpora import Corpora
from lade.applications.serve.errors import APIError
from lade.applications.serve.keys import Keys
from lade.applications.serve.prompts import PART

FIRST, SECOND = "first-key-of-16-characters", "second-key-of-16-characters"
TOKENS = 200


@pytest.fixture
def server(pair: Any) -> Iterator[Served]:
    config = lade.LookaheadConfig(mode="auto", budget=16, adapt=False, sources=("corpus",))
    with serving(pair, config=config, corpus_tokens=TOKENS) as found:
        yield found


def post(client: TestClient, path: str, key: str | None = None, **fields: Any) -> Any:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return client.post(path, json=fields, headers=headers)


def add(served: Served, *documents: str, **fields: Any) -> dict[str, Any]:
    answer = post(served.client, "/add_external_corpus", documents=list(documents), **fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def counts(served: Served) -> dict[str, int]:
    answer = served.client.get("/list_external_corpora").json()
    assert answer["success"] is True
    return dict(answer["corpus_token_counts"])


def steps(served: Served, **fields: Any) -> int:
    """Of an answer, which is plain decoding's."""
    notes = served.noted_tallies()
    assert served.text(max_tokens=24, **fields) == served.decode(PROMPT, served.plain())
    served.settled()
    ((_, tally),) = notes
    return tally.lengths.total()


def test_the_corpus_that_was_added_last_is_drafted_from(server: Served) -> None:
    """In turn: none, its own answer, another text, and each of them by name."""
    alone, answer = steps(server), server.decode(PROMPT, server.plain())
    made = add(server, PROMPT + answer, corpus_id="answers")
    whole = len(server.tokenizer(PROMPT + answer, add_special_tokens=False)["input_ids"])
    assert made == {"success": True, "corpus_id": "answers", "message": "", "loaded_token_count": whole}
    few = steps(server)
    assert few <= 3 < 20 < alone
    other = add(server, "nothing of the kind")
    assert other["corpus_id"].startswith("corpus-")
    assert counts(server) == {"answers": whole, other["corpus_id"]: other["loaded_token_count"]}
    assert steps(server) > few
    assert steps(server, lade={"corpus": "answers"}) == few
    assert steps(server, lade={"corpus": other["corpus_id"]}) > few
    removed = post(server.client, "/remove_external_corpus", corpus_id=other["corpus_id"])
    assert removed.json() == {"success": True, "message": ""}
    assert counts(server) == {"answers": whole}
    assert steps(server) == few


def test_every_endpoint_that_answers_takes_the_name(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, given = server.service.engine.submit, list[Any]()
    monkeypatch.setattr(
        server.service.engine, "submit", lambda **fields: given.append(fields["corpus"]) or submit(**fields)
    )
    says = [{"role": "user", "content": "Add."}]
    add(server, "a text", corpus_id="one")
    add(server, "another", corpus_id="two")
    for path, body in (
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 4}),
        ("/v1/chat/completions", {"messages": says, "max_tokens": 4}),
        ("/v1/responses", {"input": "Add.", "max_output_tokens": 4}),
        ("/v1/messages", {"messages": says, "max_tokens": 4}),
    ):
        assert post(server.client, path, lade={"corpus": "one"}, **body).status_code == 200
        assert given.pop() is server.service.corpora.chosen(None, "one")
        error = post(server.client, path, lade={"corpus": "none"}, **body)
        assert error.status_code == 400
        assert error.json()["error"]["param"] == "lade.corpus"
        assert error.json()["error"]["message"] == "lade.corpus must be a corpus that this key added, got 'none'"
    server.settled()


def test_a_name_that_is_there_is_taken_anew(server: Served) -> None:
    """And counts as added last."""
    add(server, "one", corpus_id="a")
    add(server, "two", corpus_id="b")
    tokens = add(server, "x" * TOKENS, corpus_id="a")["loaded_token_count"]
    assert list(counts(server).items()) == [("b", counts(server)["b"]), ("a", tokens)]
    assert f"lade_corpus_tokens {sum(counts(server).values())}.0" in server.client.get("/metrics").text


def test_keys_share_nothing(pair: Any) -> None:
    with serving(pair, keys=Keys([FIRST, SECOND]), corpus_tokens=TOKENS) as found:
        client = found.client
        assert post(client, "/add_external_corpus").status_code == 401
        assert post(client, "/add_external_corpus", FIRST, documents=["a b"], corpus_id="own").status_code == 200
        listed = [
            client.get("/list_external_corpora", headers={"Authorization": f"Bearer {key}"}).json()
            for key in (FIRST, SECOND)
        ]
        assert [[*each["corpus_token_counts"]] for each in listed] == [["own"], []]
        asked = post(client, "/v1/completions", SECOND, prompt="a", lade={"corpus": "own"})
        assert asked.status_code == 400
        assert post(client, "/remove_external_corpus", SECOND, corpus_id="own").status_code == 404
        assert post(client, "/v1/completions", FIRST, prompt="a", lade={"corpus": "own"}).status_code == 200
        assert post(client, "/remove_external_corpus", FIRST, corpus_id="own").status_code == 200
        found.settled()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "documents must be given, got none"),
        ({"documents": []}, r"documents must have at least 1 item after validation, not 0, got \[\]"),
        ({"documents": [3]}, "documents.0 must be a valid string, got 3"),
        ({"documents": ["", ""]}, "documents must hold 1 to 200 tokens, .*, got none$"),
        ({"documents": ["x " * 500]}, "documents must hold 1 to 200 tokens, .*, got [0-9]+ or more$"),
        ({"documents": ["a"], "corpus_id": ""}, "corpus_id must have at least 1 character"),
        ({"documents": ["a"], "corpus_id": "x" * 129}, "corpus_id must have at most 128 characters"),
        ({"documents": ["a"], "file_path": "/etc/passwd"}, "file_path must be left out"),
    ],
    ids=str,
)
def test_what_is_no_corpus(server: Served, body: dict[str, Any], message: str) -> None:
    error = post(server.client, "/add_external_corpus", **body)
    assert error.status_code == 400
    assert re.match(message, error.json()["error"]["message"])
    assert counts(server) == {}


def test_tokens_that_others_of_the_key_have_left(server: Served) -> None:
    """The corpus that is replaced does not count."""
    word = "return"
    used = add(server, *[word] * (TOKENS // 2), corpus_id="a")["loaded_token_count"]
    larger = [word] * (TOKENS // 2 + 1)
    error = post(server.client, "/add_external_corpus", documents=larger, corpus_id="b").json()["error"]
    assert f"documents must hold 1 to {TOKENS - used} tokens" in error["message"]
    assert add(server, *larger, corpus_id="a")["loaded_token_count"] > TOKENS - used


def test_a_corpus_has_the_bound_of_all_corpora(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    corpora = Corpora(lambda text: [1] * len(text), most=9)
    with pytest.raises(APIError, match=r"documents must hold 1 to 2 tokens, .*, got 3 or more"):
        corpora.add(None, "a", ["xxx"])
    assert corpora.add(None, "a", ["xx"]) == ("a", 2)


def test_a_key_has_a_bound_of_corpora(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CORPORA", 2)
    for name in "aba":
        add(server, "text", corpus_id=name)
    error = post(server.client, "/add_external_corpus", documents=["text"], corpus_id="c").json()["error"]
    assert error["message"] == "corpus_id must be one of at most 2 corpora of a key, got 'c'"


@pytest.mark.parametrize("setting", [{"corpus_tokens": 0}, {"config": lade.LookaheadConfig(mode="lookahead")}], ids=str)
def test_a_server_without_corpora(pair: Any, setting: dict[str, Any]) -> None:
    with serving(pair, **{"config": CONFIG} | setting) as found:
        error = post(found.client, "/add_external_corpus", documents=["a"])
        assert (error.status_code, error.json()["error"]["param"]) == (400, "documents")
        assert "--corpus-tokens is 0, or it does not draft from any" in error.text
        assert counts(found) == {}
        found.text(max_tokens=1)
        found.settled()


def test_one_corpus_is_made_at_a_time() -> None:
    """The second is refused at once, and what failed holds up nobody."""
    inside, go_on = threading.Event(), threading.Event()

    def slowly(text: str) -> list[int]:
        inside.set()
        assert go_on.wait(60)
        return [len(text)]

    corpora = Corpora(slowly, most=9)
    first = threading.Thread(target=corpora.add, args=(None, "a", ["text"]))
    first.start()
    assert inside.wait(60)
    with pytest.raises(APIError, match="another corpus is being made; try again later") as caught:
        corpora.add("other", "b", ["text"])
    assert caught.value.status == 429
    go_on.set()
    first.join()
    assert corpora.tokens(None) == {"a": 1}
    with pytest.raises(APIError, match="got none"):
        corpora.add(None, "b", [])
    assert corpora.add(None, "b", ["text"]) == ("b", 1)


def test_a_large_corpus_is_refused_while_machine_code_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that awaited it would outlive the server's end by minutes."""
    corpora = Corpora(lambda text: [1] * len(text), most=9)
    monkeypatch.setattr(module, "ALOUD", 3)
    monkeypatch.setattr("lade.drafters.compiling.compiles", lambda: True)
    assert corpora.add(None, "a", ["xxx"]) == ("a", 3)
    with pytest.raises(APIError, match="machine code for large corpora is being compiled") as caught:
        corpora.add(None, "b", ["xxxx"])
    assert caught.value.status == 503


def test_a_long_document_is_encoded_in_parts(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, asked = server.service.planner.prompts, list[str]()
    monkeypatch.setattr(prompts, "_encode", lambda text, special: asked.append(text) or [len(text)])
    assert prompts.of_document("x" * (PART + 1)) == [PART, 1]
    assert prompts.of_document("") == []
    assert asked == ["x" * PART, "x"]
