"""Forwards of token trees for `older.py`, with the lade that this process imports: this checkout's or one up to 0.1.

Reads a JSON line per job from stdin: first the model and its context, then trees to decode. Answers each with a line.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

Step = Callable[[list[Any]], None]  # one forward of a tree per row, of which the roots are kept


def steps_here(model: Any, prompt: list[int], rows: int) -> Step:
    """By this checkout's packed forwards, with the fused layers of an engine whose loops are compiled."""
    from lade.core.stats import Clock
    from lade.core.tree import chain
    from lade.drafters import compiling
    from lade.facts.positions import position_limit
    from lade.target.masks import layer_kinds
    from lade.target.model import HFTarget
    from lade.target.probe import empty_cache, probed_reason

    compiling.load()
    kinds, limit = layer_kinds(model.config), position_limit(model.config)
    probed_reason(model, kinds, limit, fuse=True)
    target = HFTarget(model, empty_cache(model), kinds, limit, Clock(), packed=True)
    slots = range(rows)
    for slot in slots:
        target.open(slot, len(prompt), len(prompt) + 256)
        target.forward([slot], [chain(prompt, asked=True)])
        target.keep([slot], [range(len(prompt))])

    def step(drafts: list[Any]) -> None:
        target.forward(slots, drafts).logits.argmax(-1).tolist()
        target.keep(slots, [[0]] * rows)

    return step


def steps_before(model: Any, prompt: list[int], rows: int) -> Step:
    """By a checkout up to 0.1, with rows padded to the longest and masks over all keys."""
    from lade import fallback
    from lade.attention.dense import layer_kinds
    from lade.cache import TreeCache
    from lade.stats import Clock
    from lade.target import HFTarget

    config = model.config
    cache = TreeCache(DynamicCache(config=config), config)
    target = HFTarget(model, cache, layer_kinds(config), fallback.position_limit(config), Clock())
    target.prefill(torch.tensor([prompt] * rows), model.generation_config, {"use_cache": True})

    def step(drafts: list[Any]) -> None:
        target.forward(drafts).logits.argmax(-1).tolist()
        target.keep([[0]] * rows)

    return step


def tree(nodes: int, noise: random.Random, vocabulary: int) -> Any:
    """A random tree, whose logits are all asked for."""
    try:
        from lade.core.tree import TreeBuilder
    except ModuleNotFoundError:
        from lade.tree import TreeBuilder
    builder = TreeBuilder(noise.randrange(vocabulary))
    while len(builder.tokens) < nodes:
        builder.queries.add(builder.add(noise.randrange(len(builder.tokens)), noise.randrange(vocabulary), "made"))
    return builder.build()


def begun(job: dict[str, Any]) -> tuple[Step, int]:
    """The steps of a model with random weights behind a random prompt, and its vocabulary."""
    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    config = LlamaConfig(**job["config"])
    model = LlamaForCausalLM(config).to(getattr(torch, job["dtype"])).eval()
    noise = random.Random(0)
    prompt = [noise.randrange(config.vocab_size) for _ in range(job["context"])]
    import lade

    steps = steps_here if hasattr(lade, "Engine") else steps_before
    return steps(model, prompt, job["rows"]), config.vocab_size


def timed(step: Step, vocabulary: int, sizes: Sequence[int], seed: int) -> float:
    """Milliseconds of one step."""
    noise = random.Random(seed)
    drafts = [tree(nodes, noise, vocabulary) for nodes in sizes]
    began = time.perf_counter()
    step(drafts)
    return 1000 * (time.perf_counter() - began)


@torch.no_grad()
def main() -> None:
    steps = None
    for line in sys.stdin:
        job = json.loads(line)
        if "config" in job:
            steps = begun(job)
            print(json.dumps(job["context"]), flush=True)
        else:
            assert steps is not None
            print(json.dumps(timed(*steps, job["sizes"], job["seed"])), flush=True)


if __name__ == "__main__":
    main()
