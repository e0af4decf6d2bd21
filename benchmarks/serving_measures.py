"""What `serving.py` measures: each measurement asks a server in rounds, its variants in turn, and gives figures.

A figure is the median of ratios within rounds. Knows clients and servers; prints nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median, quantiles
from typing import Any

import torch
from serving_client import Answer, Client, in_turn

import lade
from lade.applications.bench.conversation import Conversation, Style
from lade.applications.interval import pooled_median

LEVELS = (1, 2, 4, 8, 16)  # clients
LEAST = 4  # requests at a level
STREAMS, STREAM_TOKENS, BEGUN = 7, 256, 8  # pieces of each stream before a long prompt comes
LONG, PREFIX, TAIL = 1500, 1000, 24  # tokens
FEW = 8  # new tokens where the first one counts, so that it does not wait for what a text's end costs
PAIRS = 4  # requests of a round, where one client asks
SPECULATION = {"on": True, "off": False}

Row = dict[str, Any]
Way = Callable[[str, int, bool], tuple[float, float]]


@dataclass(frozen=True)
class Figure:
    """A median of ratios with its 95% bootstrap interval over rounds, and what is asked of it."""

    name: str
    median: float
    low: float | None
    high: float | None
    rounds: int
    at_least: float | None = None
    at_most: float | None = None

    @property
    def holds(self) -> bool:
        enough = self.at_least is None or self.median >= self.at_least
        return enough and (self.at_most is None or self.median <= self.at_most)

    def __str__(self) -> str:
        within = "" if self.low is None else f" ({self.low:.2f} to {self.high:.2f})"
        bounds = {">=": self.at_least, "<=": self.at_most}
        asked = [
            f"asked {sign} {bound:g}: {'holds' if self.holds else 'BROKEN'}" for sign, bound in bounds.items() if bound
        ]
        return "  ".join([f"{self.name:40} {self.median:.2f}{within}", *asked])


def figure(name: str, rounds: Sequence[Sequence[float]], **asked: float) -> Figure:
    """From the ratios of each round."""
    found = pooled_median(rounds)
    return Figure(name, found.median, found.low, found.high, found.n, **asked)


@dataclass
class Measured:
    """Figures, and the rows that they come from."""

    figures: list[Figure]
    rows: list[Row]


@dataclass
class Site:
    """What a measurement has.

    Attributes:
        server: starts a server with these options, or gives the one that has them.
        random: one whose model has random weights.
        model, tokenizer: the server's, in this process.
        texts: prompts, as texts.
        batching: asked of the tokens/s of 8 clients over those of one.
        each: requests of a client in a round of `throughput`. With one, clients whose answers end early wait for the
            slowest.
    """

    server: Callable[..., Client]
    random: Callable[[], Client]
    model: Any
    tokenizer: Any
    texts: Sequence[str]
    tokens: int
    rounds: int
    batching: float
    each: int
    prompts: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.prompts = [Conversation(Style(self.tokenizer)).ask(text) for text in self.texts]

    def take(self, number: int, count: int) -> list[list[int]]:
        """Prompts of a round: other ones in each, as long as there are some."""
        first = number * max(LEVELS)
        return [self.prompts[(first + index) % len(self.prompts)] for index in range(count)]

    def long(self, number: int, tokens: int) -> list[int]:
        """A prompt of so many tokens, which begins otherwise for each number."""
        found: list[int] = []
        while len(found) < tokens:
            found += self.prompts[number % len(self.prompts)]
            number += 1
        return found[:tokens]


def turns(names: Sequence[str], number: int) -> list[str]:
    """The variants of a round; each comes first in some rounds."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def throughput(site: Site) -> Measured:
    """Tokens/s of 1 to 16 clients with drafts and without, and of plain `generate` with a batch of as many."""
    client = site.server()
    ways = {name: partial(_rate, client, tokens=site.tokens, drafts=drafts) for name, drafts in SPECULATION.items()}
    rows = list(_rates(site, ways | {"plain": partial(_plain_rate, site)}))
    figures = [
        figure("8 clients over 1", _between(rows, "on"), at_least=site.batching),
        figure("8 clients over 1, off", _between(rows, "off")),
        *(
            figure(f"on over off, clients: {level}", _within(rows, level, "on", "off"), at_least=0.98)
            for level in LEVELS
        ),
        *(
            figure(f"off over a plain batch, clients: {level}", _within(rows, level, "off", "plain"), at_least=0.9)
            for level in LEVELS
        ),
    ]
    return Measured(figures, rows)


def random_weights(site: Site) -> Measured:
    """Tokens/s at temperature 1 where drafts are worth nothing."""
    client = site.random()
    way = partial(_rate, client, tokens=site.tokens, temperature=1, seed=0)
    rows = list(_rates(site, {name: partial(way, drafts=drafts) for name, drafts in SPECULATION.items()}))
    name = "random weights, on over off, clients: "
    return Measured(
        [figure(f"{name}{level}", _within(rows, level, "on", "off"), at_least=0.98) for level in LEVELS], rows
    )


def _rates(site: Site, ways: dict[str, Callable[..., float]]) -> Iterator[Row]:
    """Tokens/s of each way at each level, and the share of one core that this process took meanwhile."""
    for way in ways.values():
        way(site.take(0, max(LEVELS)), max(LEVELS))  # the self-probe, allocators, caches
    for number in range(site.rounds):
        for clients in LEVELS:
            row: Row = {"round": number, "clients": clients}
            prompts = site.take(number, max(LEAST, clients * site.each))
            for name in turns(list(ways), number):
                wall, cpu = time.perf_counter(), time.process_time()
                row[name] = ways[name](prompts, clients)
                row[f"{name}_client_cpu"] = (time.process_time() - cpu) / (time.perf_counter() - wall)
            yield row


def _rate(
    client: Client, prompts: Sequence[list[int]], clients: int, tokens: int, drafts: bool, **fields: Any
) -> float:
    """Tokens/s."""
    lade_fields = {"lade": {"speculation": drafts}}
    asks = [partial(client.complete, prompt, tokens, **lade_fields, **fields) for prompt in prompts]
    return rate_of(asyncio.run(in_turn(clients, asks)))


def rate_of(answers: Sequence[Answer]) -> float:
    seconds = max(answer.sent + answer.seconds for answer in answers) - min(answer.sent for answer in answers)
    return sum(answer.tokens for answer in answers) / seconds


def _plain_rate(site: Site, prompts: Sequence[list[int]], clients: int) -> float:
    """Tokens/s of plain `generate` with batches, padded on the left."""
    began, new = time.perf_counter(), 0
    for first in range(0, len(prompts), clients):
        rows = prompts[first : first + clients]
        longest = max(map(len, rows))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        found = site.model.generate(ids, attention_mask=mask, max_new_tokens=site.tokens, do_sample=False)
        new += found[:, longest:].numel()
    return new / (time.perf_counter() - began)


def _between(rows: Sequence[Row], way: str) -> list[list[float]]:
    """8 clients over 1, by round."""
    rates = {(row["round"], row["clients"]): row[way] for row in rows}
    return [[rates[number, 8] / rates[number, 1]] for number, clients in rates if clients == 1]


def _within(rows: Sequence[Row], clients: int, one: str, other: str) -> list[list[float]]:
    """One way over the other, by round."""
    return [[row[one] / row[other]] for row in rows if row["clients"] == clients]


def gaps(site: Site) -> Measured:
    """Gaps between the events of 7 streams among which a long prompt comes: the 99th percentile over the median.

    They count once all streams have their first tokens.
    """
    client, rows = site.server(), list[Row]()
    asyncio.run(_streams(site, client, 0, long=True, drafts=True))
    for number in range(site.rounds):
        for name in turns(list(SPECULATION), number):
            for long in (True, False):
                found = asyncio.run(_streams(site, client, number, long, SPECULATION[name]))
                rows.append({"round": number, "speculation": name, "long": long} | found)
    asked = {True: {"at_most": 2.5}, False: {}}
    figures = [
        figure(f"gap, 99th percentile over median, {name}{'' if long else ', no long prompt'}", found, **asked[long])
        for name in SPECULATION
        for long in (True, False)
        if (found := [[row["ratio"]] for row in rows if (row["speculation"], row["long"]) == (name, long)])
    ]
    return Measured(figures, rows)


async def _streams(site: Site, client: Client, number: int, long: bool, drafts: bool) -> Row:
    begun, early = asyncio.Event(), set(range(STREAMS))

    def noted(index: int, parts: int) -> None:
        if parts == BEGUN:
            early.discard(index)
        if not early:
            begun.set()

    fields = {"lade": {"speculation": drafts}}
    asked = [
        client.complete(prompt, STREAM_TOKENS, on_data=partial(noted, index), **fields)
        for index, prompt in enumerate(site.take(number, STREAMS))
    ]
    streams = asyncio.gather(*asked)
    row: Row = {}
    if long:
        await _either(streams, begun.wait())
        row["first_seconds"] = (await client.complete(site.long(number, LONG), 1, **fields)).first_seconds
    answers = await streams
    all_run = max(answer.sent + answer.first_seconds for answer in answers)
    found = [gap for answer in answers for gap in answer.gaps(all_run)]
    percentile = quantiles(found, n=100)[98]
    return row | {
        "ratio": percentile / median(found),
        "median": median(found),
        "percentile": percentile,
        "max": max(found),
    }


async def _either(streams: asyncio.Future[Any], begun: Awaitable[Any]) -> None:
    waiting = asyncio.ensure_future(begun)
    await asyncio.wait((streams, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def prefix(site: Site) -> Measured:
    """The first token of two prompts of one tenant that begin alike: seconds of the first one over the second one."""
    client, rows = site.server("--tenant-pools"), list[Row]()
    asyncio.run(client.complete(site.long(site.rounds, PREFIX), FEW))
    for number in range(site.rounds):
        head = site.long(number, PREFIX)
        tails = [site.long(number + 1 + index, TAIL) for index in range(2)]
        cold, again = [asyncio.run(client.complete(head + tail, FEW)) for tail in tails]
        seconds = {"cold": cold.first_seconds, "again": again.first_seconds}
        rows.append({"round": number, **seconds, "cold_cached": cold.cached_tokens, "cached": again.cached_tokens})
    return Measured(
        [figure("first token, repeated prefix", [[row["cold"] / row["again"]] for row in rows], at_least=5)], rows
    )


def http(site: Site) -> Measured:
    """The first token and the tokens/s of one client, over those of the same requests through `lade.Engine` here."""
    rows = list[Row]()
    with lade.Engine(site.model) as engine:
        ways: dict[str, Way] = {
            "http": partial(_asked, site.server()),
            "engine": partial(_direct, engine, site.tokenizer),
        }
        for number in range(-1, site.rounds):  # the first round is not counted
            for index in range(PAIRS):
                text = site.texts[(number * PAIRS + index) % len(site.texts)]
                for name, drafts in SPECULATION.items():
                    row: Row = {"round": number, "speculation": name}
                    for way in turns(list(ways), number + index):
                        row[f"{way}_first"], row[f"{way}_last"] = ways[way](text, site.tokens, drafts)
                    rows += [row] if number >= 0 else []
    return Measured([each for name in SPECULATION for each in _http_figures(rows, name)], rows)


def _http_figures(rows: Sequence[Row], name: str) -> list[Figure]:
    ratios = partial(by_round, [row for row in rows if row["speculation"] == name])
    first = ratios(lambda row: row["http_first"] / row["engine_first"])
    rate = ratios(lambda row: row["engine_last"] / row["http_last"])
    return [
        figure(f"http over engine, first token, {name}", first, at_most=1.05),
        figure(f"http over engine, tokens/s, {name}", rate, at_least=0.95),
    ]


def _asked(client: Client, text: str, tokens: int, drafts: bool) -> tuple[float, float]:
    """Seconds to the first token and to the last one."""
    answer = asyncio.run(client.complete(text, tokens, lade={"speculation": drafts}))
    return answer.first_seconds, answer.seconds


def _direct(engine: lade.Engine, tokenizer: Any, text: str, tokens: int, drafts: bool) -> tuple[float, float]:
    """Seconds to the first token and to the last one."""
    began, first = time.perf_counter(), 0.0
    ids = torch.tensor([tokenizer(text).input_ids])
    settings = {"max_new_tokens": tokens, "do_sample": False}
    request = engine.submit(ids, attention_mask=torch.ones_like(ids), drafts=drafts, **settings)
    while engine.step():
        if request.emitted and not first:
            first = time.perf_counter() - began
    last = time.perf_counter() - began
    return first or last, last


def by_round(rows: Sequence[Row], value: Callable[[Row], float]) -> list[list[float]]:
    """The values of each round's rows."""
    found: dict[int, list[float]] = {}
    for row in rows:
        found.setdefault(row["round"], []).append(value(row))
    return list(found.values())
