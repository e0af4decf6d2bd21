"""From a call to its emission: all nodes of a forward at once where nothing reads the text, else token by token."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import StoppingCriteriaList
from transformers.generation import EosTokenCriteria, MaxTimeCriteria

from lade.core.noise import Noise
from lade.core.request import Request
from lade.engine.acceptance import ProposedAtOnce, ProposedTokenByToken
from lade.engine.ahead import ChosenAhead
from lade.engine.emission import AtOnce, TokenByToken
from lade.engine.purity import HOST_CRITERIA, PARTICULAR, ROW_PURE, ROW_PURE_CRITERIA, TEXT_BLIND
from lade.engine.scores import Record
from lade.engine.stopping import Criteria, HostRule, StopRule
from lade.engine.stream import Stream
from lade.engine.text import Text, UnreadText
from lade.target.call import Call


def emission_for(
    call: Call,
    requests: Sequence[Request],
    stream: Stream,
    noise: Noise | None,
    record: Record,
    proposals: bool,
    together: bool = False,
) -> AtOnce | TokenByToken:
    """The emission of a call.

    Args:
        noise: for sampling with drafts that are not random, else `None`.
        record: scores and logits that the caller gets back.
        proposals: whether drafts are drawn from a distribution, so that an acceptance rule chooses.
        together: choose after all nodes of a forward at once wherever that is possible, as the device does.
    """
    unread = all(type(processor) in TEXT_BLIND for processor in call.processors) and all(
        type(criterion) in HOST_CRITERIA for criterion in call.criteria
    )
    noted = record.wanted or any(request.logprobs is not None for request in requests)
    early = not any(type(processor) in PARTICULAR for processor in call.processors)
    if unread and not noted and (proposals or (early and (together or _pays_at_once(call, noise)))):
        at_once = ProposedAtOnce if proposals else AtOnce
        return at_once(requests, stream, call.processors, HostRule(eos_tokens(call.criteria)), noise)
    one_by_one = ProposedTokenByToken if proposals else TokenByToken
    if unread:
        unread_text, host_rule = UnreadText(call.input_ids.device), HostRule(eos_tokens(call.criteria))
        return one_by_one(requests, stream, call.processors, host_rule, unread_text, noise, record)
    text = Text(call.input_ids)
    return one_by_one(requests, stream, call.processors, Criteria(call.criteria, text, record), text, noise, record)


def chooses_ahead(call: Call) -> bool:
    """Whether choices may be made before their tokens are emitted: nobody sees scores, and nothing keeps a state."""
    config = call.generation_config
    noted = config.return_dict_in_generate and (config.output_scores or config.output_logits)
    return (
        not noted
        and all(type(processor) in ROW_PURE - PARTICULAR for processor in call.processors)
        and all(type(criterion) in ROW_PURE_CRITERIA - {MaxTimeCriteria} for criterion in call.criteria)
    )


def ahead_for(call: Call, requests: Sequence[Request], stream: Stream, noise: Noise | None) -> ChosenAhead:
    """The emission of a call that several ranks share, which `chooses_ahead`."""
    host = all(type(criterion) in HOST_CRITERIA for criterion in call.criteria)
    blind = all(type(processor) in TEXT_BLIND for processor in call.processors)
    text = UnreadText(call.input_ids.device) if host and blind else Text(call.input_ids)
    ends: StopRule = HostRule(eos_tokens(call.criteria))
    if not host:
        assert isinstance(text, Text)
        ends = Criteria(call.criteria, text, Record(wants_scores=False, wants_logits=False))
    return ChosenAhead(requests, stream, call.processors, ends, text, noise)


def _pays_at_once(call: Call, noise: Noise | None) -> bool:
    """On a CPU, where a copy is free, scores of the visited nodes alone are cheaper; an argmax of all is cheap."""
    return call.input_ids.device.type != "cpu" or (noise is None and not call.processors)


def eos_tokens(criteria: StoppingCriteriaList) -> frozenset[int]:
    """Tokens that end a text."""
    ids = [criterion.eos_token_id for criterion in criteria if isinstance(criterion, EosTokenCriteria)]
    return frozenset(int(token) for tensor in ids for token in tensor.tolist())
