"""Greedy texts for `real_text.py`, with the lade that this process imports, one up to 0.1.

Its arguments are a model's folder and a dtype. Reads a JSON line per job from stdin, answers each with a line.
"""

from __future__ import annotations

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import lade

COLD = ("suffix", "window", "recycled")


def main() -> None:
    folder, dtype = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for line in sys.stdin:
        job = json.loads(line)
        torch.set_num_threads(job["threads"])
        if job["warm"]:
            lade.warm_up(model, tokenizer=tokenizer)
        ids = torch.tensor([job["ids"]])
        config = lade.LookaheadConfig(
            budget=job["budget"], adapt=False, sources=(*COLD, "warm") if job["warm"] else COLD
        )
        lade.generate(
            model,
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            config=config,
            do_sample=False,
            max_new_tokens=job["tokens"],
        )
        stats = lade.last_stats()
        assert stats.fallback is None, stats.fallback
        found = {name: getattr(stats, name) for name in ("new_tokens", "steps", "forward_tokens")}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
