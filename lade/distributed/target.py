"""The target of a rank in lookahead parallelism: it computes its share of every tree, and learns the rest of the step.

Every rank holds the whole model and walks every tree; one exchange a step tells it what the others found. What it did
not compute of an accepted path it computes before its next share (`lade.distributed.lagging`), or gets from the rank
that did (`lade.distributed.sending`), whichever takes less time. Uses the forward of `lade.target.model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from transformers import DynamicCache

from lade.core.tree import Draft, chain
from lade.distributed.alone import KnownOutputs, Texts, exchanged
from lade.distributed.checksum import of_drafts, of_integers
from lade.distributed.cut import Share, cut
from lade.distributed.exchanged import ExchangedOutputs
from lade.distributed.group import Group
from lade.distributed.lagging import Behind, behind
from lade.distributed.led import check_equal
from lade.distributed.record import Layout, Record, pack, unpack
from lade.distributed.sending import Lags, Sent, packed, unpacked
from lade.distributed.tried import Way
from lade.facts.vocabulary import writable
from lade.target.call import UNLIMITED
from lade.target.model import HFTarget
from lade.target.outputs import Outputs
from lade.target.pieces import Piece

CATCH_UP = 16  # tokens that a rank without a share lets gather before it computes them


class Steps(Protocol):
    """Times steps on rank 0, and chooses by them how many ranks share one."""

    @property
    def alone(self) -> bool:
        """Whether rank 0 decodes alone from now on."""
        ...

    def begin(self, tokens: int, rows: int, lacks: Callable[[int], bool]) -> Way:
        """A forward of so many tokens begins.

        Args:
            lacks: whether one of so many ranks lacks keys and values that another one has.
        """
        ...

    def times(self) -> Sequence[float]:
        """What rank 0 sends with the step."""
        ...

    def take(self, times: Sequence[float]) -> None:
        """What rank 0 has sent."""
        ...

    def begin_alone(self) -> None:
        """A forward of rank 0 alone begins."""
        ...

    def end_alone(self, tokens: int, rows: int) -> None:
        """It is verified."""
        ...


class SharedTarget:
    """The target of one rank.

    Args:
        inner: computes this rank's shares.
        layout: of the exchange.

    Attributes:
        untimed: never, since a rank does not know which ways to compute the others try, and all must decide alike.
    """

    untimed = False

    def __init__(self, inner: HFTarget, group: Group, layout: Layout, steps: Steps) -> None:
        self.inner, self.group, self.layout, self.steps = inner, group, layout, steps
        self.clock, self.vocabulary, self.packed = inner.clock, inner.vocabulary, inner.packed
        self.undisturbed = False
        self.lacking: dict[int, list[int]] = {}  # by slot: accepted tokens that are not in this rank's cache
        self._lags = Lags(group.size)
        self._shares: Sequence[Share] = ()  # of the last forward
        self._parts: dict[int, Behind] = {}  # by slot: what the last forward computed here
        self._tokens: dict[int, list[int]] = {}  # by slot: those of the last forward's tree
        self._checksum = 0
        self._texts: Texts | None = None  # of rank 0, where it has decoded alone
        self._shared = True  # whether all ranks share the step: they may learn in it that rank 0 goes on alone
        self._kept: dict[int, int] = {}  # by slot: tokens behind the prompt that all ranks know to be accepted
        self._prefill: Callable[[], Outputs] | None = None  # of this rank, not computed yet

    @property
    def follows(self) -> bool:
        """Whether this rank waits for the texts of rank 0."""
        return self.steps.alone and self.group.rank > 0

    def texts(self) -> Texts:
        """Wait for those of rank 0, which decodes alone."""
        if self._texts is None:
            self._texts = exchanged(self.group, None)
        return self._texts

    def prefill(
        self, input_ids: torch.Tensor, generation_config: Any, model_kwargs: dict[str, Any], most: int | None = None
    ) -> Outputs:
        """Every rank computes the whole prompts, which may take one longer than another; rank 0 chooses after them."""
        self.group.watch.work()
        rows = range(input_ids.shape[0])
        for slot in rows:
            self._open(slot)
        compute = partial(self.inner.prefill, input_ids, generation_config, model_kwargs, most)
        if self.follows:
            self._prefill = compute
            return self._known(rows, [Draft.alone(0) for _ in rows], [0 for _ in rows])
        first = compute()
        if self.steps.alone:
            return first
        queries = [(row, 0) for row in rows]
        shares = [Share(queries, [[0]] * len(rows)), *[Share((), [[]] * len(rows))] * (self.group.size - 1)]
        return self._outputs(first.logits, first.lines if self.group.rank == 0 else [{} for _ in rows], shares)

    def open(self, slot: int, tokens: int, most: int | None = None) -> None:
        self._open(slot)
        self.inner.open(slot, tokens, most)

    def _open(self, slot: int) -> None:
        self.lacking[slot], self._kept[slot] = [], 0
        self._lags.open(slot)

    def close(self, slot: int) -> None:
        del self.lacking[slot], self._kept[slot]
        self._lags.close(slot)
        self.inner.close(slot)

    def depth_limit(self, slot: int, remaining: int) -> int:
        """`HFTarget.depth_limit` of the whole text."""
        if self.follows:
            return remaining - 1
        limit = self.inner.depth_limit(slot, remaining + len(self.lacking[slot]))
        return min(remaining - 1, limit - len(self.lacking[slot]))

    def max_nodes(self, slots: Sequence[int]) -> int:
        """`HFTarget.max_nodes` of the whole texts."""
        if self.follows or self.inner.position_limit is None:
            return UNLIMITED
        lengths = self.inner.cache.lengths
        return max(1, self.inner.position_limit - max(lengths[slot] + len(self.lacking[slot]) for slot in slots))

    def forward(self, slots: Sequence[int], drafts: Sequence[Draft]) -> Outputs:
        """This rank's share of a forward. All ranks must be given the same drafts, as long as rank 0 is not alone."""
        self._tokens = {slot: draft.tokens for slot, draft in zip(slots, drafts, strict=True)}
        self._shared = not self.steps.alone
        if self.follows:
            return self._known(slots, drafts, [1 + self._kept[slot] for slot in slots])
        if self.steps.alone:
            return self._forward_alone(slots, drafts)
        self._checksum = of_integers([*slots, of_drafts(drafts)], self._checksum)
        lacks = lambda ranks: bool(self._lags.sent(slots, ranks))  # noqa: E731
        way = self.steps.begin(sum(map(len, drafts)), len(drafts), lacks)
        if way.sends:
            self._send(self._lags.sent(slots, way.ranks))
        shares = cut(drafts, way.ranks, self.packed)
        shares += [Share((), [()] * len(drafts))] * (self.group.size - way.ranks)
        self._shares, own = shares, shares[self.group.rank]
        self._parts = self._cut_out(slots, drafts, own)
        for rank, share in enumerate(shares):
            if not share.size:
                self._lags.caught_up(rank, CATCH_UP)
        logits, lines = self._compute(slots, own)
        return self._outputs(logits, lines, shares)

    def _forward_alone(self, slots: Sequence[int], drafts: Sequence[Draft]) -> Outputs:
        self._catch_up(1)
        self.group.watch.step()
        self.steps.begin_alone()
        return self.inner.forward(slots, drafts)

    def _known(self, slots: Sequence[int], drafts: Sequence[Draft], begins: Sequence[int]) -> Outputs:
        texts = self.texts()
        return KnownOutputs([texts[slot] for slot in slots], begins, drafts, writable(self.inner.model))

    def _send(self, sent: Sequence[Sent]) -> None:
        """Send the keys and values of accepted tokens from ranks that have them to those that lack them."""
        if not sent:
            return
        buffer, sources = packed(self.inner.cache, sent, self.group.rank), {each.source for each in sent}
        self.group.add(buffer) if len(sources) > 1 else self.group.broadcast(buffer, min(sources))
        taking = [self.group.rank in self._lags.receive(each) for each in sent]
        lacking = [len(self.lacking[each.slot]) if takes else 0 for each, takes in zip(sent, taking, strict=True)]
        unpacked(self.inner, sent, buffer, lacking)
        self.lacking |= {each.slot: [] for each, takes in zip(sent, taking, strict=True) if takes}

    def _cut_out(self, slots: Sequence[int], drafts: Sequence[Draft], share: Share) -> dict[int, Behind]:
        queries: list[list[int]] = [[] for _ in drafts]
        for row, node in share.queries:
            queries[row].append(node)
        return {
            slot: behind(draft, self.lacking[slot], share.nodes[row], queries[row])
            for row, (slot, draft) in enumerate(zip(slots, drafts, strict=True))
            if share.nodes[row]
        }

    def _compute(self, slots: Sequence[int], share: Share) -> tuple[torch.Tensor, Sequence[Mapping[int, int]]]:
        """[M, V] logits of this rank's queries, and per row of the step the line of each."""
        lines: list[dict[int, int]] = [{} for _ in slots]
        drafts = [part.draft for part in self._parts.values()]
        sizes = list(map(len, drafts))
        with self.clock.forward(sum(sizes), len(slots), max(sizes, default=0)):
            if not drafts:
                self._catch_up(CATCH_UP)
                return torch.empty(0, 1, device=self.inner.device), lines
            logits, found = self.inner.compute(list(self._parts), [Piece.whole(draft) for draft in drafts])
        of_slot = dict(zip(self._parts, found, strict=True))
        for row, node in share.queries:
            lines[row][node] = of_slot[slots[row]][self._parts[slots[row]].numbers[node]]
        return logits, lines

    def _outputs(self, logits: torch.Tensor, lines: Sequence[Mapping[int, int]], shares: Sequence[Share]) -> Outputs:
        return ExchangedOutputs(logits, lines, self.vocabulary, shares, self.group.rank, self.layout, self._exchange)

    def _exchange(self, own: Record, entries: int) -> list[Record]:
        own = replace(own, checksum=self._checksum, times=self.steps.times() if self.group.rank == 0 else ())
        found = self.group.gather(pack(own, self.layout, entries))
        check_equal(found[:, 0])
        records = [unpack(record, self.layout, entries) for record in found]
        self.steps.take(records[0].times)
        return records

    def discard(self, slots: Sequence[int]) -> None:
        """Clear the keys and values that the last forward wrote in these slots, as far as it did."""
        if not self._shared:
            self.inner.discard(slots)
            return
        written = [slot for slot in slots if slot in self._parts]
        if written:
            self.inner.discard(written)

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep one path in each slot; the end that this rank did not compute is lacking from now on."""
        for slot, path in zip(slots, paths, strict=True):
            self._kept[slot] += len(path)
        if self._shared:
            self._keep_shares(slots, paths)
        elif self.follows:
            self._lack(slots, paths)
        else:
            self.steps.end_alone(sum(map(len, self._tokens.values())), len(slots))
            self.inner.keep(slots, paths)

    def _lack(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        for slot, path in zip(slots, paths, strict=True):
            self.lacking[slot] += [self._tokens[slot][node] for node in path]

    def _keep_shares(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        kept: list[list[int]] = []
        for row, (slot, path) in enumerate(zip(slots, paths, strict=True)):
            self._checksum = of_integers(path, self._checksum)
            self._lags.keep(slot, [share.nodes[row] for share in self._shares], path)
            part, tokens = self._parts.get(slot), self._tokens[slot]
            if part is None:
                self.lacking[slot] += [tokens[node] for node in path]
                continue
            nodes, computed = part.kept(path)
            kept.append(nodes)
            self.lacking[slot] = [tokens[node] for node in path[computed:]]
        if kept:
            self.inner.keep([slot for slot in slots if slot in self._parts], kept)

    def _catch_up(self, least: int) -> None:
        """Compute the accepted tokens that this rank lacks, in slots that lack at least so many."""
        slots = [slot for slot, lacking in self.lacking.items() if len(lacking) >= least]
        if not slots:
            return
        chains = [chain(self.lacking[slot], asked=False) for slot in slots]
        self.inner.compute(slots, [Piece.whole(each) for each in chains])
        self.inner.keep(slots, [range(len(each)) for each in chains])
        self.lacking |= {slot: [] for slot in slots}

    def export(self, stock: DynamicCache) -> None:
        """Write the slots into a cache of transformers."""
        if self._prefill is not None:
            self._prefill()
        self._catch_up(1)
        self.inner.export(stock)
