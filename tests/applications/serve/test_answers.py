"""Answers of the endpoints: their texts, their fields, and streams that tell the same."""

import math
from threading import current_thread
from typing import Any

import pytest
from served import NAME, PROMPT, Served, events

from lade.applications.chat.formats import PLAIN
from lade.applications.serve import service

MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Add two numbers"}]


def chat(served: Served, **fields: Any) -> Any:
    asked = {"model": NAME, "messages": MESSAGES, "temperature": 0, "max_tokens": 20}
    answer = served.client.post("/v1/chat/completions", json=asked | fields)
    assert answer.status_code == 200, answer.text
    return events(answer.text) if fields.get("stream") else answer.json()


def test_a_completion(served: Served) -> None:
    answer = served.complete(max_tokens=12)
    plain = served.plain(max_new_tokens=12)
    assert answer["choices"] == [
        {"index": 0, "text": served.decode(PROMPT, plain), "logprobs": None, "finish_reason": "length"}
    ]
    assert (answer["object"], answer["model"]) == ("text_completion", NAME)
    prompt = len(served.tokenizer(PROMPT)["input_ids"])
    assert answer["usage"]["prompt_tokens"] == prompt
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["total_tokens"] == prompt + 12


def test_a_chat(served: Served) -> None:
    prompt = served.tokenizer.apply_chat_template(
        MESSAGES, chat_template=PLAIN.template, tokenize=False, add_generation_prompt=True
    )
    ids = served.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    (choice,) = chat(served)["choices"]
    assert choice["message"]["content"] == served.decode(ids, served.plain(ids, max_new_tokens=20)).split("\nUser:")[0]
    assert choice["message"]["role"] == "assistant"


def test_parts_of_a_message_are_one_text(served: Served) -> None:
    parts = [{"type": "text", "text": "Add two "}, {"type": "text", "text": "numbers"}]
    messages = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": parts}]
    assert chat(served, messages=messages)["choices"] == chat(served)["choices"]


@pytest.mark.usefixtures("one_way")
def test_a_stream_tells_the_same(served: Served) -> None:
    fields = {"n": 2, "seed": 3, "temperature": 1, "logprobs": True, "top_logprobs": 2}
    whole = chat(served, **fields)
    told = chat(served, stream=True, stream_options={"include_usage": True}, **fields)
    *chunks, last, done = told
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert {chunk["id"] for chunk in [*chunks, last]} == {last["id"]}
    assert all(chunk["usage"] is None for chunk in chunks)
    for choice in whole["choices"]:
        own = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert own[0]["delta"]["role"] == "assistant"
        assert "".join(part["delta"].get("content", "") for part in own) == choice["message"]["content"]
        noted = [each for part in own if part["logprobs"] for each in part["logprobs"]["content"]]
        assert noted == choice["logprobs"]["content"]
        assert [part["finish_reason"] for part in own if part["finish_reason"]] == [choice["finish_reason"]]


@pytest.mark.usefixtures("one_way")
def test_a_stream_of_a_completion_tells_the_same(served: Served) -> None:
    fields = {"prompt": [PROMPT, "x ="], "n": 2, "seed": 5, "max_tokens": 9, "logprobs": 1, "echo": True}
    whole = served.client.post("/v1/completions", json=fields).json()
    told = events(served.client.post("/v1/completions", json=fields | {"stream": True}).text)
    assert told[-1] == "[DONE]"
    assert all("usage" not in chunk for chunk in told[:-1])
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    for choice in whole["choices"]:
        own = [part for chunk in told[:-1] for part in chunk["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in own) == choice["text"]
        noted = [part["logprobs"] for part in own if part["logprobs"]]
        joined = {name: [each for part in noted for each in part[name]] for name in choice["logprobs"]}
        assert joined == choice["logprobs"]


def test_choices_of_a_prompt_have_seeds_in_turn(served: Served) -> None:
    together = served.complete(["x =", "y ="], n=2, seed=7, temperature=1, max_tokens=8)
    alone = [
        served.text(prompt, seed=seed, temperature=1, max_tokens=8) for prompt in ("x =", "y =") for seed in (7, 8)
    ]
    assert [choice["text"] for choice in together["choices"]] == alone
    assert len(set(alone)) == 4
    sizes = [len(served.tokenizer(prompt)["input_ids"]) for prompt in ("x =", "y =")]
    assert together["usage"]["prompt_tokens"] == sum(sizes)
    assert together["usage"]["completion_tokens"] == 32


def test_token_ids_are_a_prompt_too(served: Served) -> None:
    ids = served.tokenizer(PROMPT)["input_ids"]
    assert served.text(ids) == served.text(PROMPT) == served.text([ids])
    assert served.text([float(token) for token in ids], n=1.0) == served.text(ids), "5.0 is an integer in JSON"
    assert len(served.complete([ids, ids[:3]])["choices"]) == 2


def test_echo_with_log_probabilities_scores_the_prompt(served: Served) -> None:
    """As evaluation tools ask."""
    import torch

    ids = served.tokenizer(PROMPT)["input_ids"]
    (choice,) = served.complete(PROMPT, echo=True, logprobs=1, max_tokens=1)["choices"]
    with torch.no_grad():
        logits = served.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    noted = choice["logprobs"]
    assert len(noted["tokens"]) == len(ids) + 1
    assert noted["token_logprobs"][0] is None
    assert noted["top_logprobs"][0] is None
    for place, token in enumerate(ids[1:]):
        assert math.isclose(noted["token_logprobs"][place + 1], logits[place, token].item(), abs_tol=1e-4)
        assert math.isclose(max(noted["top_logprobs"][place + 1].values()), logits[place].max().item(), abs_tol=1e-4)
    assert choice["text"].startswith(PROMPT)
    before = (served.tokenizer.decode(ids[:size], skip_special_tokens=True) for size in (0, 1, 2))
    assert noted["text_offset"][:3] == [len(text) for text in before]
    (only,) = served.complete(PROMPT, echo=True, logprobs=1, max_tokens=0, stop="no such text")["choices"]
    assert only["text"] == PROMPT
    assert only["logprobs"] == {name: values[:-1] for name, values in noted.items()}


def test_log_probabilities_of_a_chat(served: Served) -> None:
    (choice,) = chat(served, logprobs=True, top_logprobs=3)["choices"]
    noted = choice["logprobs"]["content"]
    assert "".join(each["token"] for each in noted) == choice["message"]["content"]
    for each in noted:
        assert bytes(each["bytes"]).decode() == each["token"]
        assert len(each["top_logprobs"]) == 3
        assert each["top_logprobs"][0]["logprob"] == each["logprob"]
    assert chat(served, logprobs=True)["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_tokens_behind_a_stop_string_are_not_told(served: Served) -> None:
    whole = served.text(max_tokens=40)
    stop = whole[10:13]
    (choice,) = served.complete(stop=[stop, "no such text"], max_tokens=40, logprobs=0)["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == whole[: whole.index(stop)]
    assert "".join(choice["logprobs"]["tokens"]).startswith(choice["text"])
    assert len(choice["logprobs"]["tokens"]) <= len(choice["text"])


def test_the_end_of_a_text_is_not_told(served: Served) -> None:
    """The model chooses its own end here, through a bias."""
    end = served.model.generation_config.eos_token_id
    ends: dict[str, Any] = {"logit_bias": {str(end): 100}, "max_tokens": 5}
    answer = served.complete(logprobs=0, **ends)
    assert answer["choices"][0]["text"] == ""
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["logprobs"]["tokens"] == [served.tokenizer.eos_token]
    assert answer["usage"]["completion_tokens"] == 1
    (choice,) = chat(served, logprobs=True, **ends)["choices"]
    assert choice["message"]["content"] == ""
    assert choice["logprobs"]["content"] == []
    (scored,) = served.complete(echo=True, logprobs=1, **ends | {"max_tokens": 1})["choices"]
    assert len(scored["logprobs"]["token_logprobs"]) == len(served.tokenizer(PROMPT)["input_ids"]) + 1


@pytest.mark.parametrize(("length", "status"), [(3, 200), (1 << 12, 400)])
def test_who_submits_lets_go_of_the_threads_that_it_computed_with(
    length: int, status: int, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the request is refused."""
    found = list[str]()
    monkeypatch.setattr(service, "release_threads", lambda: found.append(current_thread().name))
    body = {"model": NAME, "prompt": [50] * length, "max_tokens": 2}
    assert served.client.post("/v1/completions", json=body).status_code == status
    (name,) = found
    assert name.startswith("asyncio_")


def test_an_answer_ends_where_the_model_does(served: Served) -> None:
    most = served.model.config.max_position_embeddings
    ids = [50] * (most - 3)
    answer = served.complete(ids, max_tokens=400)
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["choices"][0]["finish_reason"] == "length"


def test_speculation_is_told_and_can_be_switched_off(served: Served) -> None:
    on, off = (served.complete(lade={"speculation": drafts}, max_tokens=40) for drafts in (True, False))
    assert on["choices"] == off["choices"]
    told = on["metrics"]["speculative_decoding"]
    assert told["num_accepted_draft_tokens"] > 0
    assert told["num_accepted_draft_tokens"] == sum(told["accepted_by_source"].values())
    assert sum(told["acceptance_histogram"]) == told["num_spec_steps"]
    new, steps = on["usage"]["completion_tokens"], told["num_spec_steps"]
    assert sum(size * count for size, count in enumerate(told["acceptance_histogram"])) == new - 1 - steps
    assert told["mean_acceptance_length"] == 1 + told["num_accepted_draft_tokens"] / told["num_spec_steps"]
    assert "metrics" not in off
    assert "metrics" not in served.complete(n=2, max_tokens=4)


def test_a_prediction_drafts_and_changes_nothing(served: Served) -> None:
    text = chat(served, max_tokens=60)["choices"][0]["message"]["content"]
    alone = chat(served, max_tokens=60)
    right = chat(served, max_tokens=60, prediction={"type": "content", "content": text})
    wrong = chat(
        served, max_tokens=60, prediction={"type": "content", "content": [{"type": "text", "text": "no " * 30}]}
    )
    assert right["choices"] == wrong["choices"] == alone["choices"]
    details = [each["usage"]["completion_tokens_details"] for each in (alone, right, wrong)]
    assert details[0]["accepted_prediction_tokens"] == 0
    assert details[1]["accepted_prediction_tokens"] > 20
    assert details[1]["rejected_prediction_tokens"] < details[1]["accepted_prediction_tokens"] / 4
    assert details[2]["accepted_prediction_tokens"] == 0
    steps = [each["metrics"]["speculative_decoding"]["num_spec_steps"] for each in (alone, right)]
    assert steps[1] < steps[0] / 2


def test_bounds_of_the_openapi_page_are_exact(served: Served) -> None:
    """A float of 2**63 is written as a larger number, and clients would send what is refused."""
    schemas = served.client.get("/openapi.json").json()["components"]["schemas"]
    for name in ("ChatRequest", "CompletionRequest", "ResponsesRequest"):
        (bounds, _) = schemas[name]["properties"]["seed"]["anyOf"]
        found = bounds["minimum"], bounds["exclusiveMaximum"]
        assert found == (-(2**63), 2**63)
        assert {*map(type, found)} == {int}
    assert schemas["ChatRequest"]["properties"]["repetition_penalty"]["anyOf"][0]["minimum"] == 0.01


def test_the_openapi_page_tells_the_statuses_that_there_are(served: Served) -> None:
    page = served.client.get("/openapi.json").json()
    for path, method in (("/v1/chat/completions", "post"), ("/v1/models/{model}", "get"), ("/metrics", "get")):
        statuses = page["paths"][path][method]["responses"]
        assert {"200", "400", "401", "403", "404", "405", "413", "429", "503"} <= set(statuses)
        assert "422" not in statuses, "FastAPI's own, which this server does not send"
        assert all(each["content"] for each in statuses.values())
    assert "HTTPValidationError" not in page["components"]["schemas"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/", f"/v1/models/{NAME}"])
def test_models(served: Served, path: str) -> None:
    found = served.client.get(path).json()
    card = found if path.endswith(NAME) else found["data"][0]
    assert (card["id"], card["object"], card["owned_by"]) == (NAME, "model", "lade")
    assert card["max_model_len"] == served.model.config.max_position_embeddings


def test_health_and_metrics(served: Served) -> None:
    assert served.client.get("/health").json() == {"status": "ok"}
    tokens = served.complete(max_tokens=30)["usage"]["completion_tokens"]
    page = served.client.get("/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert float(lines["lade_generated_tokens_total"]) >= tokens > 0
    assert float(lines['lade_requests_total{path="/v1/completions",status="200"}']) >= 1
    assert any(float(count) > 0 for name, count in lines.items() if name.startswith("lade_accepted_draft_tokens_total"))
    assert float(lines["lade_first_token_seconds_count"]) >= 1
    served.client.get("/v1/models/a/b"), served.client.get("/v1/nothing")
    page = served.client.get("/metrics").text
    for path in ("/v1/models/{model}", "other"):
        assert f'lade_requests_total{{path="{path}",status="404"}}' in page
    assert PROMPT not in page


def test_offsets_point_into_the_text(served: Served) -> None:
    prompt = "# é😀 and 😀😀 x\n"
    ids = served.tokenizer(prompt)["input_ids"]
    (choice,) = served.complete([*ids[:3], 0, *ids[3:]], echo=True, logprobs=0, max_tokens=12)["choices"]
    noted, places = choice["logprobs"], list[int]()
    for token, offset in zip(noted["tokens"], noted["text_offset"], strict=True):
        if "\ufffd" not in token and not token.startswith("<|"):
            assert choice["text"].startswith(token, offset), (token, offset)
        places.append(offset)
    assert places == sorted(places)
    assert max(places) < len(choice["text"])
    parts = {offset for token, offset in zip(noted["tokens"], places, strict=True) if "\ufffd" in token}
    assert parts == {1, 3, 9, 10}, "the tokens of a character stand where it does"


def test_an_end_that_is_ignored(served: Served) -> None:
    end = served.model.generation_config.eos_token_id
    ends: dict[str, Any] = {"logit_bias": {str(end): 100}, "max_tokens": 5}
    (choice,) = served.complete(**ends, ignore_eos=True)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "length")
    assert served.complete(**ends, ignore_eos=True)["usage"]["completion_tokens"] == 5
    assert served.complete(**ends, min_tokens=3)["usage"]["completion_tokens"] == 4
    plain = served.plain(max_new_tokens=5, min_new_tokens=3, sequence_bias=[[[end], 100.0]])
    assert served.text(**ends, min_tokens=3) == served.decode(PROMPT, plain)


def test_tokens_that_end_a_text(served: Served) -> None:
    plain = served.plain(max_new_tokens=12)
    stop = plain[6]
    (choice,) = served.complete(max_tokens=12, stop_token_ids=[stop, 5])["choices"]
    assert choice["text"] == served.decode(PROMPT, plain[: plain.index(stop)])
    assert choice["finish_reason"] == "stop"
    assert served.complete(max_tokens=12, stop_token_ids=[stop], ignore_eos=True)["choices"] == [choice]


def test_a_stream_with_the_usage_so_far(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    told = chat(served, stream=True, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in told[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == 20


def test_fields_that_say_what_the_server_does_anyway(served: Served) -> None:
    neutral = {"skip_special_tokens": True, "include_stop_str_in_output": False, "stop_token_ids": [], "min_tokens": 0}
    neutral |= {"ignore_eos": False, "prompt_logprobs": None, "use_beam_search": False}
    assert served.text(max_tokens=5, **neutral) == served.text(max_tokens=5)
    assert chat(served, function_call=None, add_generation_prompt=True, continue_final_message=False, **neutral)


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_what_is_watched_has_a_head(served: Served, path: str) -> None:
    """aiperf asks for that of the metrics first."""
    assert served.client.head(path).status_code == 200
