"""What `serving.py` measures of texts that answers repeat: predicted outputs, and corpora that clients add."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from serving_client import Answer, Client
from serving_measures import PAIRS, Measured, Row, Site, by_round, figure, turns

Ask = Callable[[str, int], Answer]  # the answer to a text, by the name of a variant and the text's index


def prediction(site: Site) -> Measured:
    """A request without a prediction, with a right one and with a wrong one: seconds, and tokens per step."""
    client = site.server()
    texts, answers = _answered(site, client, PAIRS + 1)

    def ask(name: str, index: int) -> Answer:
        given = {"right": answers[index], "wrong": answers[index + 1]}
        told = {"prediction": {"type": "content", "content": given[name]}} if name in given else {}
        return asyncio.run(client.chat(texts[index], site.tokens, **told))

    rows = _in_turn(site, ("none", "right", "wrong"), ask)
    ratios = partial(by_round, rows)
    tokens = ratios(lambda row: row["right_tokens"] / row["right_steps"])
    figures = [
        figure("right prediction, tokens per step", tokens, at_least=8),
        figure("right prediction, speed-up", ratios(lambda row: row["none"] / row["right"]), at_least=2),
        figure("wrong prediction, speed-up", ratios(lambda row: row["none"] / row["wrong"]), at_least=0.98),
    ]
    return Measured(figures, rows)


def corpus(site: Site) -> Measured:
    """A request without a corpus, with one that holds its answer beside others, and with one of other answers.

    Twice the tokens per step with the answers is what SGLang's test of its own asks (sgl-project/sglang#22199).
    """
    client = site.server()
    texts, answers = _answered(site, client, 2 * PAIRS)
    documents = {"matching": answers[:PAIRS], "other": answers[PAIRS:]}

    def ask(name: str, index: int) -> Answer:
        if name not in documents:
            return asyncio.run(client.chat(texts[index], site.tokens))
        client.post("/add_external_corpus", corpus_id=name, documents=documents[name])
        try:
            return asyncio.run(client.chat(texts[index], site.tokens))
        finally:
            client.post("/remove_external_corpus", corpus_id=name)

    rows = _in_turn(site, ("none", *documents), ask)
    ratios = partial(by_round, rows)
    steps = ratios(lambda row: row["none_steps"] / row["matching_steps"])
    figures = [
        figure("matching corpus, steps without over with", steps, at_least=2),
        figure("matching corpus, speed-up", ratios(lambda row: row["none"] / row["matching"])),
        figure("other corpus, speed-up", ratios(lambda row: row["none"] / row["other"]), at_least=0.98),
    ]
    return Measured(figures, rows)


def _answered(site: Site, client: Client, number: int) -> tuple[Sequence[str], Sequence[str]]:
    """Some texts, and their answers."""
    texts = [site.texts[index % len(site.texts)] for index in range(number)]
    return texts, [asyncio.run(client.chat(text, site.tokens)).text for text in texts]


def _in_turn(site: Site, names: Iterable[str], ask: Ask) -> list[Row]:
    """One row for each text of each round: the seconds, tokens and steps of each variant."""
    rows = list[Row]()
    for number in range(site.rounds):
        for index in range(PAIRS):
            row: dict[str, Any] = {"round": number, "prompt": index}
            for name in turns(list(names), number + index):
                found = ask(name, index)
                steps = found.speculation["num_spec_steps"]
                row |= {name: found.seconds, f"{name}_tokens": found.tokens, f"{name}_steps": steps}
            rows.append(row)
    return rows
