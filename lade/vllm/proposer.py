"""The class that vLLM asks for drafts: a chain per request and step, from the blend of all sources.

vLLM calls `propose` once per step, after it has chosen the step's tokens. K draft tokens at most, R rows of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from lade.config.settings import FAMILIES, LookaheadConfig
from lade.core.request import Request, Verdict
from lade.core.tree import Draft, TreeBuilder
from lade.drafters import compiling
from lade.drafters.blend import BlendDrafter
from lade.drafters.factory import corpus_for
from lade.memory.backoff import backoff
from lade.memory.warmtable import WarmTable
from lade.pace.pace import Pace, WholeBudget
from lade.pace.sharing import PACKED
from lade.vllm.costs import shared_cost
from lade.vllm.lines import spans
from lade.vllm.options import AUTO, OFF, check_config, check_version, drafts_here, options_of
from lade.vllm.predicted import SHARPNESS, Lines, Logits, Outputs
from lade.vllm.requests import Known, Requests
from lade.vllm.table import logger, named_table, table_of

SOURCES = tuple(name for name in FAMILIES if name != "window")  # which is a tree
UNLIMITED = 1 << 30


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the batch that has new tokens.

    Attributes:
        place: in the batch.
        new: tokens of this step.
        text: [n] int32, with them.
        known: its request, if that was in an earlier step.
    """

    place: int
    new: list[int]
    text: np.ndarray
    known: Known | None

    @property
    def most(self) -> int:
        """The most lines of logits that it can have: no draft, or all of one whose beginning was accepted."""
        if self.known is None:
            return 1
        draft, accepted = self.known.draft, self.new[:-1]
        fits = draft is None or draft.tokens[1 : len(self.new)] == accepted
        return self.known.drafted if fits else 0


class Proposer:
    """Drafts for vLLM: `--speculative-config '{"method": "custom_class", "model": "lade.vllm.Proposer", ...}'`.

    What drafting learns belongs to one request and is dropped with it. Texts do not depend on drafts.

    Args:
        vllm_config: vLLM's `VllmConfig`. Its `additional_config` may hold our `lade.vllm.options.Options`.

    Raises:
        VersionError: this version of vLLM is not tested.
        ValueError: names the setting.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._version = str(import_module("vllm").__version__)
        check_version(self._version)
        check_config(vllm_config)
        self._config, self._options = vllm_config, options_of(vllm_config)
        self._drafts = drafts_here(vllm_config)
        self._tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self._longest = int(vllm_config.model_config.max_model_len)
        self._vocabulary = int(vllm_config.model_config.get_vocab_size())
        self._requests = Requests(4 * int(vllm_config.scheduler_config.max_num_seqs))
        self._logits = Logits()
        self._drafter: BlendDrafter  # from `load_model` on
        self._planned: tuple[int, int] | None = None  # rows and tokens of the running step; `None`: not drafted
        if self._drafts:
            compiling.begin()

    def load_model(self, model: Any) -> None:
        """Read the logits of this model from now on, and its warm table where there is one. vLLM calls it once."""
        if self._drafts:
            model.compute_logits = self._logits.wrap(model.compute_logits)
            self._drafter = self._drafter_with(self._table())

    def propose(
        self,
        sampled_token_ids: Sequence[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft tokens for the next step, none where they do not pay.

        Args:
            sampled_token_ids: R lists of new tokens; empty for a row whose prompt is not complete.
            num_tokens_no_spec: [at least R] tokens of each row's text, the new ones included.
            token_ids_cpu: [at least R, longest text] int32, the texts.
            slot_mappings: not used.

        Returns:
            R lists of at most K tokens.
        """
        proposals: list[list[int]] = [[] for _ in sampled_token_ids]
        if not self._drafts:
            return proposals
        late, outputs = self._logits.calls > 1, self._logits.take()
        rows = self._rows(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, late)
        self._observe(rows, self._lines(rows, len(proposals), outputs.lines), outputs)
        decodes = len(rows) == len(proposals) and all(row.known is not None for row in rows)
        if not decodes or self._planned != (len(proposals), outputs.lines):
            self._pause()
        if not rows:
            self._planned = None
            return proposals
        for row, draft in zip(rows, self._drafted(rows), strict=True):
            proposals[row.place] = draft.tokens[1:]
        return proposals

    def _rows(self, sampled: Sequence[list[int]], lengths: np.ndarray, ids: np.ndarray, late: bool) -> list[_Row]:
        places = [place for place, new in enumerate(sampled) if new]
        texts = [ids[place, : lengths[place]].astype(np.int32, copy=False) for place in places]
        earlier = [text[: len(text) - len(sampled[place])] for place, text in zip(places, texts, strict=True)]
        found = self._requests.match(earlier, late)
        parts = zip(places, texts, found, strict=True)
        return [_Row(place, sampled[place], text, known) for place, text, known in parts]

    def _lines(self, rows: Sequence[_Row], batch: int, total: int) -> list[range | None]:
        """Of the logits, by row."""
        fewest, most = [1] * batch, [1] * batch  # an incomplete prompt has one
        for row in rows:
            fewest[row.place], most[row.place] = len(row.new), row.most
        found = spans(fewest, most, total)
        return [found[row.place] for row in rows]

    def _observe(self, rows: Sequence[_Row], lines: Sequence[range | None], outputs: Outputs) -> None:
        """Let the known requests' texts grow, and learn from those whose logits are known."""
        requests, drafts, verdicts, own = [], [], [], []
        for row, span in zip(rows, lines, strict=True):
            known = row.known
            if known is None or known.request is None:
                continue
            grown = row.text[len(known.text) :]
            known.extend(grown)
            known.request.tokens += grown.tolist()
            if span is not None and known.draft is not None:
                requests.append(known.request)
                drafts.append(_beginning(known.draft, len(span)))
                verdicts.append(Verdict(range(len(row.new)), row.new))
                own.append(span)
        if self._planned is not None:
            self._drafter.observe(requests, drafts, verdicts, Lines(outputs.top, own))

    def _pause(self) -> None:
        """The step that ended is not timed: it computed prompts, or not the drafts that it was given."""
        if self._planned is not None:
            self._drafter.pause()

    def _drafted(self, rows: Sequence[_Row]) -> list[Draft]:
        """The next draft of each row."""
        known = [self._started(row) for row in rows]
        requests = [each.request for each in known if each.request is not None]
        depths = [max(0, min(self._tokens, self._longest - len(row.text) - 1)) for row in rows]
        drafts = [_readable(draft, self._vocabulary) for draft in self._drafter.draft(requests, depths)]
        for each, draft in zip(known, drafts, strict=True):
            each.draft, each.drafted = draft, len(draft)
        self._logits.wanted = self._drafter.looks
        self._planned = len(rows), sum(map(len, drafts))
        self._drafter.end()  # stores what was measured
        return drafts

    def _started(self, row: _Row) -> Known:
        """The row's request; a new one, or one that was dropped, starts."""
        if row.known is not None and row.known.request is not None:
            return row.known
        request = Request(row.place, row.text.tolist(), len(row.text) - len(row.new), UNLIMITED)
        request.inverse_temperature = SHARPNESS
        self._drafter.start(request)
        known = Known(request, drafted=1)
        known.extend(row.text)
        self._requests.known.append(known)
        return known

    def _drafter_with(self, table: WarmTable | None) -> BlendDrafter:
        settings = LookaheadConfig(sources=SOURCES, corpus=self._options.corpus).settled()
        budget = self._tokens + 1
        pace = WholeBudget(budget)
        if self._options.adapt:
            pace = Pace(shared_cost(self._config, self._version), budget, sharing=PACKED)
        warm = None if table is None else partial(backoff, table)
        corpus = corpus_for(settings, self._vocabulary)
        return BlendDrafter(settings, budget, warm, pace=pace, chains=True, corpus=corpus)

    def _table(self) -> WarmTable | None:
        named, model = self._options.warm_table, self._config.model_config
        if named == OFF:
            return None
        if named != AUTO:
            return named_table(named, self._vocabulary)
        table = table_of(model.model, model.revision, model.dtype, model.trust_remote_code)
        logger.info("lade drafts %s", "without a warm table" if table is None else f"with warm table {table.digest}")
        return table


def _beginning(draft: Draft, nodes: int) -> Draft:
    """The first nodes of a chain."""
    if nodes >= len(draft):
        return draft
    builder = TreeBuilder(draft.tokens[0])
    for token, source in zip(draft.tokens[1:nodes], draft.sources[1:nodes], strict=True):
        builder.queries.add(builder.add(len(builder.tokens) - 1, token, source))
    return builder.build()


def _readable(draft: Draft, vocabulary: int) -> Draft:
    """The beginning of a chain that has token ids of the model alone."""
    if max(draft.tokens[1:], default=0) < vocabulary:
        return draft
    return _beginning(draft, next(node for node, token in enumerate(draft.tokens) if node and token >= vocabulary))
