"""The page at `/`: what it is made of, what it may ask for, and the chunks that it reads."""

import re

import pytest
from served import Served, events

from lade.applications.serve.pages import FILES


@pytest.mark.parametrize("path", FILES)
def test_its_files(served: Served, path: str) -> None:
    answer = served.client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(FILES[path][1])
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?://|innerHTML|eval\(|\son\w+=", answer.text)


def test_its_parts_are_there(served: Served) -> None:
    page, script = (served.client.get(path).text for path in ("/", "/page.js"))
    ids = set(re.findall(r'id="(\w+)"', page))
    used = set(re.findall(r'(?:at|number)\("(\w+)"\)', script))
    assert used
    assert used <= ids
    assert set(re.findall(r'(?:src|href)="([\w.]+)"', page)) == {"page.css", "page.js"}
    for control in re.findall(r"<(?:input|textarea)[^>]*>", page):
        (name,) = re.findall(r'id="(\w+)"', control)
        assert f'for="{name}"' in page or re.search(rf"<label>[^<]*{re.escape(control)}", page)


def test_chunks_tell_the_tokens_of_their_step(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "x = 1"}], "max_tokens": 40, "temperature": 0, "stream": True}
    told = events(served.client.post("/v1/chat/completions", json=body | {"lade": {"steps": True}}).text)
    counts = [chunk["lade"]["tokens"] for chunk in told[1:-1]]
    assert max(counts) > 1
    whole = served.client.post("/v1/chat/completions", json=body | {"stream": False}).json()
    assert sum(counts) == whole["usage"]["completion_tokens"]
    assert len(counts) == whole["metrics"]["speculative_decoding"]["num_spec_steps"] + 1
    assert not any("lade" in chunk for chunk in events(served.client.post("/v1/chat/completions", json=body).text)[:-1])
