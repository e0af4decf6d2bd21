"""Decodes prompts with dejavuu's drafters, in an environment of its own, which `beside_dejavuu.py` makes.

Reads one JSON object from stdin; writes a JSON line per setting and prompt. Imports nothing of lade: the two may need
different packages.
"""

from __future__ import annotations

import json
import sys

import torch
from dejavuu.core.engine import generate
from dejavuu.decoders.hf import HFBackend
from dejavuu.drafters import make_drafter
from dejavuu.drafters.base import Drafter
from dejavuu.drafters.hybrid import Hybrid
from dejavuu.drafters.prompt_lookup import PLD
from dejavuu.drafters.token_recycling import TokenRecycling
from loguru import logger

LONGEST = 4  # tokens that prompt lookup matches at most, as in its own setting


def drafter(name: str) -> Drafter:
    """One of dejavuu's by its name; `lookup3` is its `pld_recycle` with matches of at least 3 tokens.

    `lookup3-graft` joins both in one tree: recycled predictions fill what prompt lookup leaves of the budget.
    """
    kind, _, mode = name.partition("-")
    if not kind.startswith("lookup"):
        return make_drafter(name)
    least = int(kind.removeprefix("lookup"))
    return Hybrid(PLD(n_min=least, n_max=max(LONGEST, least)), TokenRecycling(), mode=mode or "empty")


def main() -> None:
    logger.remove()
    job = json.load(sys.stdin)
    torch.set_num_threads(job["threads"])
    backend = HFBackend(job["model"], device="cpu", dtype=job["dtype"], attn_implementation="sdpa", emit_hidden=False)
    for number, setting in enumerate(job["settings"]):
        name, budget = setting["drafter"], setting["budget"] - 1  # guesses: a forward carries the last token too
        drafting = drafter(name)
        for index, prompt in enumerate(job["prompts"]):
            drafting = drafting if setting["kept"] else drafter(name)
            found = generate(
                backend, prompt, job["tokens"], drafting, budget, job["eos"], tree=True, width=job["width"]
            )
            counts = {"text": found.tokens, "steps": found.steps, "forward_tokens": found.drafted + found.steps}
            print(json.dumps({"setting": number, "prompt": index} | counts), flush=True)


if __name__ == "__main__":
    main()
