"""One call of `generate` for a case: plainly, or with lade through one of its entry points."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig, GenerationMixin, PreTrainedModel, StaticCache

import lade
from hostile.case import Case
from hostile.options import OPTIONS, OptionContext
from hostile.outcome import CallOutcome
from hostile.prompts import prompts, vocabulary_of, words
from hostile.subjects import EDGES, TRAINED, subject, tokenizer
from hostile.users import Log
from lade.config.settings import FIELDS

WAYS = ("augment", "scope", "generate", "hook")
CACHES = (
    "user",
    "user-bare",
    "continued",
    "user-static",
    "static",
    "dynamic",
    "dynamic_full",
    "offloaded",
    "quantized",
)
INPUTS = ("embeds", "embeds+ids", "positions", "config", "positional", "extra-positions", "none", "empty")
REFERENCES = ("equal", "useless", "outside", "empty", "per-row")
METHODS = ("draft", "multi", "self")
LISTS = ("logits_processor", "stopping_criteria", "suppress_tokens")  # arguments that several options may extend
GROWN = 6  # tokens that a continued cache gets before the call


@dataclass
class CallInputs:
    """The arguments of one call, and the objects to check after it."""

    arguments: dict[str, Any]
    log: Log | None = None
    cache: Any = None
    notes: list[Any] = field(default_factory=list)


def arguments(case: Case, model: PreTrainedModel) -> CallInputs:
    """New arguments of `generate`."""
    size = vocabulary_of(model)
    given = CallInputs(dict(prompts(case, size)))
    length = given.arguments["input_ids"].shape[1]
    given.arguments |= {"max_new_tokens": case.new_tokens, "do_sample": not case.greedy, **case.choose}
    if case.copies > 1:
        given.arguments["num_return_sequences"] = case.copies
    for name in case.options:
        words_of = tokenizer(case.model) if case.model in TRAINED else None
        place = OptionContext(case.draws(name), size, length, case.new_tokens, given.notes, words_of)
        _merge(given.arguments, OPTIONS[name](place))
    if case.model in EDGES and EDGES[case.model].forbids:
        _merge(given.arguments, {"suppress_tokens": list(EDGES[case.model].forbids)})
    _outputs(case, given)
    _cache(case, model, given)
    _inputs(case, model, given)
    return given


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        into[name] = type(value)([*into[name], *value]) if name in LISTS and name in into else value


def _outputs(case: Case, given: CallInputs) -> None:
    if "streamer" in case.outputs:
        given.log = given.arguments["streamer"] = Log()
    for output in case.outputs:
        if output != "streamer":
            given.arguments[output] = True


def _cache(case: Case, model: PreTrainedModel, given: CallInputs) -> None:
    config = model.config.get_text_config(decoder=True)
    if case.cache in ("user", "continued"):
        given.cache = DynamicCache(config=config)
    elif case.cache == "user-bare":
        given.cache = DynamicCache()
    elif case.cache == "user-static":
        given.cache = StaticCache(config, max_cache_len=128)
    elif case.cache:
        given.arguments["cache_implementation"] = case.cache
    if given.cache is not None:
        given.arguments["past_key_values"] = given.cache
    if case.cache == "continued":
        _grow(case, model, given)


def _grow(case: Case, model: PreTrainedModel, given: CallInputs) -> None:
    """Fill the cache with a plain call, and append further tokens to the prompt."""
    ids = given.arguments["input_ids"]
    mask = given.arguments.get("attention_mask")
    seen = {} if mask is None else {"attention_mask": mask}
    with torch.random.fork_rng(devices=[]):
        asked = {"do_sample": False, "max_new_tokens": GROWN, "eos_token_id": None, "return_dict_in_generate": False}
        asked |= {name: value for name, value in given.arguments.items() if name == "suppress_tokens"}
        try:
            text = model.generate(ids, **seen, past_key_values=given.cache, **asked)
        except (ValueError, RuntimeError, TypeError):  # a model that takes no such cache rejects the case's call too
            return
    draws = case.draws("continued")
    more = torch.tensor([words(draws, 3, vocabulary_of(model)) for _ in range(len(ids))], dtype=ids.dtype)
    given.arguments["input_ids"] = torch.cat([text, more], dim=1)
    if mask is not None:
        grown = given.arguments["input_ids"].shape[1] - mask.shape[1]
        given.arguments["attention_mask"] = torch.cat([mask, mask.new_ones(len(ids), grown)], dim=1)


def _inputs(case: Case, model: PreTrainedModel, given: CallInputs) -> None:
    asked = given.arguments
    if case.inputs.startswith("embeds"):
        with torch.no_grad():
            asked["inputs_embeds"] = model.get_input_embeddings()(asked["input_ids"])
        if case.inputs == "embeds":
            del asked["input_ids"]
    elif case.inputs == "positions" and "attention_mask" in asked:
        asked["position_ids"] = (asked["attention_mask"].long().cumsum(-1) - 1).clamp(min=0)
    elif case.inputs == "extra-positions":
        asked["position_ids"] = torch.arange(3, 3 + asked["input_ids"].shape[1]).expand_as(asked["input_ids"])
    elif case.inputs == "none":
        asked.pop("input_ids")
        asked.pop("attention_mask", None)
    elif case.inputs == "empty":
        asked.pop("attention_mask", None)
        asked["input_ids"] = asked["input_ids"][:, :0]
    elif case.inputs == "config":
        names = [name for name in asked if hasattr(GenerationConfig(), name)]
        settings = GenerationConfig(pad_token_id=0)
        for name in names:  # one by one, so that the call checks them
            setattr(settings, name, asked.pop(name))
        asked["generation_config"] = settings


def plainly(case: Case, model: PreTrainedModel, given: CallInputs) -> CallOutcome:
    """The call without lade."""
    return _watched(case, model, given, lambda: _generate(case, model, given.arguments))


def with_lade(case: Case, model: PreTrainedModel, given: CallInputs, answer: Any = None) -> CallOutcome:
    """The call with lade, through the case's entry point.

    Args:
        answer: plain decoding's [B, P + new] token ids, for the reference.
    """
    reference = reference_of(case, model, given, answer)
    return _watched(case, model, given, lambda: _by(case, model, given, reference))


def _generate(case: Case, model: PreTrainedModel, asked: dict[str, Any]) -> Any:
    if case.inputs == "positional" and "input_ids" in asked:
        rest = {name: value for name, value in asked.items() if name != "input_ids"}
        return model.generate(asked["input_ids"], **rest)
    return model.generate(**asked)


def _by(case: Case, model: PreTrainedModel, given: CallInputs, reference: Any) -> Any:
    asked = given.arguments
    method = method_of(case, model)
    config = None if method is not None else lade.LookaheadConfig(**case.config)
    if case.way == "scope":
        with lade.lookahead(model, config, method=method, reference=reference):
            return _generate(case, model, asked)
    if case.way == "generate":
        return lade.generate(model, config=config, method=method, reference=reference, **asked)
    if case.way == "hook":
        way = lade.decoding_method(config, method=method, reference=reference, streamer=asked.get("streamer"))
        return _generate(case, model, asked | {"custom_generate": way})
    with augmented(case.config):
        return _generate(case, model, asked)


@contextlib.contextmanager
def augmented(config: dict[str, Any]) -> Iterator[None]:
    """`augment_all` with process-wide settings; both are undone at the end."""
    lade.config_lade(**{name: config.get(field) for name, field in FIELDS.items()})
    lade.augment_all()
    try:
        yield
    finally:
        lade.restore_all()
        lade.config_lade(**dict.fromkeys(FIELDS))


def method_of(case: Case, model: PreTrainedModel) -> Any:
    if not case.method:
        return None
    if case.method == "self":
        shared = getattr(model.config.get_text_config(decoder=True), "num_kv_shared_layers", 0)
        return lade.SelfSpeculative(((), (0,)) if shared else ((0,), (0,)), tokens=3, likeliest=True)
    draft = subject("llama", "sdpa", "float32") if case.model not in TRAINED else model
    if case.method == "multi":
        return lade.MultiCandidate(draft, widths=(3, 2), likeliest=True)
    return lade.DraftModel(draft, tokens=4, likeliest=True, adapt=case.draws("adapt").choice(("fixed", "acceptance")))


def reference_of(case: Case, model: PreTrainedModel, given: CallInputs, answer: Any) -> Any:
    draws, size = case.draws("reference"), vocabulary_of(model)
    useless = words(draws, 30, size)
    if case.reference == "equal" and answer is not None:
        texts = answer.tolist()
        return texts[0] if len(case.lengths) == 1 else texts[:: case.copies]
    if case.reference == "outside":
        foreign = draws.choice((size, size + 1000, 2**31, 2**63, 2**70))
        ids = given.arguments.get("input_ids")
        last = [] if ids is None else ids[0, -3:].tolist()
        return [*useless, *last, foreign, *useless]
    if case.reference == "per-row":
        return [None if draws.random() < 0.3 else words(draws, 12, size) for _ in case.lengths]
    return {"useless": useless, "empty": []}.get(case.reference)


def _watched(case: Case, model: PreTrainedModel, given: CallInputs, call: Callable[[], Any]) -> CallOutcome:
    """Run a call and record its effects."""
    outcome = CallOutcome(notes=given.notes)
    before, stats = _state(model, given), lade.last_stats()
    torch.manual_seed(case.draws("seed").randrange(1 << 30))
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        try:
            outcome.result = call()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - compared with plain decoding's
            outcome.error = error
    outcome.generator = torch.get_rng_state()
    outcome.warned = [(each.category.__name__, str(each.message)) for each in caught]
    outcome.handed = given.log.handed if given.log is not None else []
    outcome.cache = given.cache if given.cache is not None else getattr(outcome.result, "past_key_values", None)
    outcome.own = getattr(outcome.result, "past_key_values", None) is given.cache
    outcome.transitions = _transitions(model, outcome.result)
    outcome.changed = [name for name, value in _state(model, given).items() if not _same(value, before[name])]
    outcome.stats = None if lade.last_stats() is stats else lade.last_stats()
    return outcome


def _state(model: PreTrainedModel, given: CallInputs) -> dict[str, Any]:
    """State that no call may change: its tensors and the model's settings."""
    tensors = {name: value.clone() for name, value in given.arguments.items() if isinstance(value, torch.Tensor)}
    attention = model.config.get_text_config(decoder=True)._attn_implementation
    settings = {"generation_config": model.generation_config.to_dict(), "training": model.training}
    return tensors | settings | {"attention implementation": attention, "arguments": sorted(given.arguments)}


def _same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def _transitions(model: PreTrainedModel, result: Any) -> Any:
    scores, beams = getattr(result, "scores", None), getattr(result, "beam_indices", None)
    if not scores or beams is not None:
        return None
    try:
        return model.compute_transition_scores(result.sequences, scores, normalize_logits=True)
    except RuntimeError:  # the head is wider than the vocabulary
        return None


def patched() -> bool:
    """Whether transformers is still patched."""
    return GenerationMixin._sample is not _SAMPLE


_SAMPLE = GenerationMixin._sample
