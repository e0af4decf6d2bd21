"""From a call to its emission: all nodes of a forward at once where nothing reads the text, else token by token."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import StoppingCriteriaList
from transformers.generation import EosTokenCriteria, MaxTimeCriteria

from lade.core.noise import Noise
from lade.core.request import Emission, Request
from lade.engine.acceptance import ProposedAtOnce, ProposedTokenByToken
from lade.engine.ahead import ChosenAhead
from lade.engine.emission import AtOnce, TokenByToken
from lade.engine.levels import LevelByLevel
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
    alone: bool = True,
) -> Emission:
    """The emission of a call.

    Args:
        noise: for sampling with drafts that are not random, else `None`.
        record: scores and logits that the caller gets back.
        proposals: whether drafts are drawn from a distribution, so that an acceptance rule chooses.
        together: choose after all nodes of a forward at once wherever that is possible, as the device does.
        alone: whether nobody else draws from the noise's generator; else none is drawn before its token is chosen.
    """
    kinds = {type(processor) for processor in call.processors}
    text, ends = _text_and_ends(call, record)
    noted = record.wanted or any(request.logprobs is not None for request in requests)
    early = not noted and not kinds & PARTICULAR  # whether tokens may be chosen after nodes that are not followed
    if isinstance(text, UnreadText) and isinstance(ends, HostRule) and not noted:
        if proposals:
            return ProposedAtOnce(requests, stream, call.processors, ends, noise)
        if early and (alone or noise is None) and (together or _pays_at_once(call, noise)):
            return AtOnce(requests, stream, call.processors, ends, noise)
    if early and not proposals and (kinds <= ROW_PURE or len(requests) == 1):
        return LevelByLevel(requests, stream, call.processors, ends, text, noise)
    one_by_one = ProposedTokenByToken if proposals else TokenByToken
    return one_by_one(requests, stream, call.processors, ends, text, noise, record)


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
    text, ends = _text_and_ends(call, Record(wants_scores=False, wants_logits=False))
    return ChosenAhead(requests, stream, call.processors, ends, text, noise)


def _text_and_ends(call: Call, record: Record) -> tuple[Text | UnreadText, StopRule]:
    """The text that processors and criteria read, where any do, and the stop rule."""
    blind = all(type(processor) in TEXT_BLIND for processor in call.processors)
    if not all(type(criterion) in HOST_CRITERIA for criterion in call.criteria):
        text = Text(call.input_ids)
        return text, Criteria(call.criteria, text, record)
    return UnreadText(call.input_ids.device) if blind else Text(call.input_ids), HostRule(eos_tokens(call.criteria))


def _pays_at_once(call: Call, noise: Noise | None) -> bool:
    """On a CPU, where a copy is free, scores of the visited nodes alone are cheaper; an argmax of all is cheap."""
    return call.input_ids.device.type != "cpu" or (noise is None and not call.processors)


def eos_tokens(criteria: StoppingCriteriaList) -> frozenset[int]:
    """Tokens that end a text."""
    ids = [criterion.eos_token_id for criterion in criteria if isinstance(criterion, EosTokenCriteria)]
    return frozenset(int(token) for tensor in ids for token in tensor.tolist())
