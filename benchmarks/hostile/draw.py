"""Drawing a case from a seed and an index."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hostile import changes, files, images, interrupts, threads
from hostile.calls import CACHES, INPUTS, METHODS, REFERENCES, WAYS
from hostile.case import Case
from hostile.options import OTHERS, ROWWISE, SAMPLED, WARPERS, WRITTEN
from hostile.prompts import LAYOUTS, TEXTS
from hostile.subjects import EDGES, FALLBACKS, LLAVA, SEEING, TRAINED, ZOO, all_names, attentions, double
from lade.config.settings import FAMILIES

# Weights of the kinds of cases and of models.
SHARES = {"generate": 69, "serve": 1, "conversation": 13, "files": 8, "signals": 6, "threads": 3, "engine": 2}
MODELS = {"family": 34, "fallback": 3, "edge": 21, "zoo": 19, "trained": 23}
MODELS_OF_AN_ENGINE = {"family": 40, "edge": 20, "trained": 20, "image": 20}
ATTEMPTS = 50
# Accepted only through the patch: `lade.generate`, the hook or transformers reject them by name.
STRICT = {"beams", "lookup", "unknown", "stop_strings", "stop_string", "max-length-short"}
# Rejected by an engine, or decoded plainly.
NOT_NATIVE = {"guidance", "no-cache", "attentions", "hidden-states", "beams", "lookup", "unknown", "max-length-short"}


def kind_of(seed: int, index: int) -> str:
    return _weighted(random.Random(f"{seed}:{index}:kind"), SHARES)


def drawn(seed: int, index: int, attempt: int = 0) -> Case:
    """The case of this number; `attempt` counts models that cannot be built."""
    draws = random.Random(f"{seed}:{index}:{attempt}")
    kind = kind_of(seed, index)
    model = _model(draws, kind)
    case: dict[str, Any] = {"seed": seed, "index": index, "kind": kind, "model": model}
    case |= _numbers(draws, model)
    case |= _prompts(draws, case)
    case |= _drafting(draws)
    own = {"generate": _generate, "conversation": _conversation, "engine": _engine, "serve": _serve}
    case |= own.get(kind, _attack)(draws, case)
    return Case(**_possible(case))


def _weighted(draws: random.Random, weights: dict[str, int]) -> str:
    return draws.choices(list(weights), list(weights.values()))[0]


def _model(draws: random.Random, kind: str) -> str:
    if kind == "serve":
        return draws.choice((*TRAINED, *TRAINED, LLAVA))
    if kind in ("files", "signals", "threads"):
        return draws.choice(("llama", "mistral-sliding", "gpt2", "gemma3", "llama/mqa", *TRAINED))
    return draws.choice(all_names()[_weighted(draws, MODELS_OF_AN_ENGINE if kind == "engine" else MODELS)])


def _numbers(draws: random.Random, model: str) -> dict[str, Any]:
    dtype = "float64" if double(model) and draws.random() < 0.1 else "float32"
    return {"attention": draws.choice(attentions(model)), "dtype": dtype}


def _prompts(draws: random.Random, case: dict[str, Any]) -> dict[str, Any]:
    rows = draws.choice((1, 1, 1, 2, 3, 5))
    longest = draws.choice((6, 12, 20, 40))
    limit = EDGES[case["model"]].limit if case["model"] in EDGES else 0
    lengths = [draws.randint(1, longest) for _ in range(rows)]
    tokens = draws.choice((4, 12, 20, 28, 40))
    if limit:
        lengths = [min(length, limit - 6) for length in lengths]
        tokens = limit - max(lengths) + draws.choice((-3, -1, 0, 0, 0, 1))
    written = case["model"] in TRAINED
    text = draws.choice(("written", "written", "repeated", "random")) if written else draws.choice(TEXTS)
    layout = "left" if draws.random() < 0.8 else draws.choice(LAYOUTS)
    return {"lengths": tuple(lengths), "new_tokens": tokens, "text": text, "layout": layout}


def _drafting(draws: random.Random) -> dict[str, Any]:
    config = _auto(draws) if draws.random() < 0.65 else _lookahead(draws)
    drafting: dict[str, Any] = {"config": config, "way": draws.choice(("augment", "augment", *WAYS))}
    if drafting["way"] != "augment":
        if draws.random() < 0.1:
            return drafting | {"method": draws.choice(METHODS)}
        if config["mode"] == "auto" and draws.random() < 0.55:
            drafting["reference"] = draws.choice(("equal", "equal", "equal", *REFERENCES))
    if config["mode"] == "auto" and draws.random() < 0.08:
        drafting["warm"] = True
    if draws.random() < 0.2:
        config["static"] = True
        config["device_drafts"] = draws.random() < 0.5
    return drafting


def _auto(draws: random.Random) -> dict[str, Any]:
    config: dict[str, Any] = {"mode": "auto"}
    if draws.random() < 0.6:
        config["budget"] = draws.choice((1, 2, 4, 9, 16, 32, 48, 64))
    if draws.random() < 0.5:
        config["adapt"] = False
    if draws.random() < 0.15:
        config["tenant"] = "somebody"
    if draws.random() < 0.15:
        config |= _sizes(draws)
    if draws.random() < 0.1:
        config["sources"] = tuple(draws.sample(FAMILIES, 2))
    if draws.random() < 0.15:
        config["corpus"] = "drawn"  # its file is written when the case runs
    if draws.random() < 0.1:
        config["pool_size"] = draws.choice((1, 10))
    return config


def _lookahead(draws: random.Random) -> dict[str, Any]:
    config: dict[str, Any] = {"mode": "lookahead", **_sizes(draws)}
    for name, likely in (("pool_from_prompt", 0.5), ("always_forward_one", 0.5)):
        if draws.random() < likely:
            config[name] = draws.random() < 0.5
    if draws.random() < 0.2:
        config["budget"] = draws.randint(1, 40)
    return config


def _sizes(draws: random.Random) -> dict[str, Any]:
    return {
        "ngram": draws.randint(2, 7),
        "window": draws.choice((1, 2, 4, 7, 15)),
        "guesses": draws.choice((-1, 1, 3, 7, 15)),
    }


def _generate(draws: random.Random, case: dict[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {"choose": _choice(draws), "options": _options(draws, case), "outputs": _outputs(draws)}
    if len(case["lengths"]) <= 2 and asked["choose"] and draws.random() < 0.2:
        asked["copies"] = draws.choice((2, 3))
    if draws.random() < 0.25:
        asked["cache"] = draws.choice(("user", "continued", *CACHES))
    if draws.random() < 0.12:
        asked["inputs"] = draws.choice(INPUTS)
    if draws.random() < 0.1:
        asked["change"] = draws.choice(tuple(changes.CHANGES))
    return asked


def _choice(draws: random.Random) -> dict[str, Any]:
    if draws.random() < 0.5:
        return {}
    chosen = {"temperature": draws.choice(WARPERS["temperature"]), "top_k": draws.choice(WARPERS["top_k"])}
    for name in draws.sample(list(WARPERS), draws.choice((0, 1, 2))):
        chosen[name] = draws.choice(WARPERS[name])
    return chosen


def _options(draws: random.Random, case: dict[str, Any]) -> tuple[str, ...]:
    alone = len(case["lengths"]) == 1
    table = ROWWISE if draws.random() < (0.5 if alone else 0.8) else ROWWISE | OTHERS
    if case["model"] in TRAINED:
        table = table | WRITTEN
    names = draws.sample(list(table), draws.choice((0, 1, 1, 2, 3)))
    return tuple(names)


def _outputs(draws: random.Random) -> tuple[str, ...]:
    outputs = ["return_dict_in_generate"] if draws.random() < 0.5 else []
    if outputs:
        outputs += [name for name in ("output_scores", "output_logits") if draws.random() < 0.5]
    return tuple(outputs + (["streamer"] if draws.random() < 0.35 else []))


def _conversation(draws: random.Random, case: dict[str, Any]) -> dict[str, Any]:
    options = tuple(dict.fromkeys((draws.choice(("eos", "eos", "eos-one")), *draws.sample(list(ROWWISE), 1))))
    return {
        "choose": _choice(draws) if draws.random() < 0.3 else {},
        "options": tuple(name for name in options if name not in ("max_length", "min_length")),
        "outputs": ("return_dict_in_generate", "output_scores", "streamer")[: draws.choice((1, 2, 3))],
        "turns": draws.choice((1, 1, 2)),
        "new_tokens": draws.choice((6, 14, 24)),
        "cache": draws.choice(("", "user", "user-bare")),
        "layout": draws.choice(("left", "left", "left", "no-mask")),
        "lengths": tuple(min(length, 20) for length in case["lengths"]),
    }


def _attack(draws: random.Random, case: dict[str, Any]) -> dict[str, Any]:
    table = {"files": files.ATTACKS, "signals": interrupts.ATTACKS, "threads": threads.ATTACKS}[case["kind"]]
    plain = {"warm": False, "method": "", "reference": "", "layout": "left", "dtype": "float32"}
    tokens = draws.choice((12, 20, 28))
    return plain | {
        "attack": draws.choice(tuple(table)),
        "new_tokens": tokens,
        "way": draws.choice(("augment", "scope")),
    }


def _engine(draws: random.Random, case: dict[str, Any]) -> dict[str, Any]:
    return {
        "lengths": (9,),
        "layout": "left",
        "way": "engine",
        "method": draws.choice(("", "", "", *METHODS)),
        "reference": "",
        "warm": False,
        "requests": draws.choice((6, 12, 24, 40)),
        "slots": draws.choice((1, 2, 3, 5, 8, 12)),
        "chunk": draws.choice((3, 30, 256)),
        "memory": draws.choice((0.0, 0.0, 0.7, 1.0, 1.6, 3.0)),
    }


def _serve(draws: random.Random, case: dict[str, Any]) -> dict[str, Any]:
    plain = {"lengths": (9,), "layout": "left", "way": "serve", "method": "", "reference": "", "warm": False}
    return plain | {
        "dtype": "float32",
        "new_tokens": draws.choice((8, 24, 40)),
        "requests": draws.choice((6, 12, 24)),
        "slots": draws.choice((1, 3, 8)),
    }


def request_of(case: Case, draws: random.Random, number: int) -> Case:
    """The case of one request of an engine's case, with its own seed."""
    asked: dict[str, Any] = {"model": case.model}
    asked |= _prompts(draws, asked)
    limited = case.model in EDGES and EDGES[case.model].limit
    long = draws.random() < (0.6 if case.model in SEEING else 0.15) and not limited
    lengths = (draws.randint(60, 110 if case.model in SEEING else 150),) if long else (max(asked["lengths"]),)
    asked |= {"lengths": lengths, "layout": draws.choice(("left", "left", "no-mask", "bool-mask"))}
    asked |= {
        "choose": _choice(draws),
        "options": tuple(name for name in _options(draws, asked) if name not in NOT_NATIVE),
    }
    drafts_freely = case.config.get("mode") == "auto" and not case.method
    asked["reference"] = draws.choice(REFERENCES) if drafts_freely and draws.random() < 0.3 else ""
    asked["outputs"] = ("streamer",) if draws.random() < 0.4 else ()
    if limited and draws.random() < 0.2:
        asked["new_tokens"] += 3  # more than there are positions for
    if case.model in SEEING:
        asked["images"] = images.drawn(draws)
    seed = draws.randrange(1 << 30)
    return replace(case, kind="request", seed=seed, index=number, requests=0, slots=0, chunk=0, memory=0.0, **asked)


def _possible(case: dict[str, Any]) -> dict[str, Any]:
    """The case without arguments that its entry point rejects, or that exclude each other."""
    options = case.get("options", ())
    strict = set(options) & STRICT or case.get("inputs") in ("embeds", "embeds+ids", "positional", "none", "empty")
    strict = strict or case.get("inputs") == "config" or case.get("layout") not in ("left",)
    if case["way"] in ("generate", "hook") and strict:
        case["way"] = "augment"
    if case["way"] == "augment":
        case["method"], case["reference"] = "", ""
    if case.get("method") == "self" and case["model"] in (*ZOO, *FALLBACKS):
        case["method"] = "draft"  # lade rejects layers that it does not find by name
    if case.get("inputs") in ("none", "empty", "embeds"):
        case["reference"] = ""  # the number of prompts does not match
    if case["kind"] == "conversation" and case.get("reference") == "outside":
        case["reference"] = "useless"
    if case.get("choose") and "prefill_chunks" not in options and "synthid" not in options and len(options) == 0:
        seeded = random.Random(f"{case['seed']}:{case['index']}:synthid")
        case["options"] = tuple(SAMPLED) if seeded.random() < 0.04 else ()
    return case
