"""Decodes prompts with vLLM, in an environment of its own, which `beside_vllm.py` makes.

Reads one JSON object from stdin; writes one JSON line behind what vLLM prints, which begins with `RESULT`. Requests
come all at once, so that they join as others leave; where it is asked to, further ones come and are cancelled.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
CANCELLED_AFTER = 7  # steps


class Watch:
    """CPU seconds of the calling thread inside some calls; others of the process may spin meanwhile."""

    def __init__(self) -> None:
        self.seconds, self.calls, self.rows = 0.0, 0, 0

    def around(self, function: Any, counts: bool = False) -> Any:
        def timed(*arguments: Any, **options: Any) -> Any:
            begun = time.thread_time()
            found = function(*arguments, **options)
            self.seconds += time.thread_time() - begun
            if counts:
                self.calls, self.rows = self.calls + 1, self.rows + len(found)
            return found

        return timed


def counters(llm: Any) -> dict[str, int]:
    """vLLM's own, so far."""
    found = {metric.name.removeprefix("vllm:spec_decode_"): metric for metric in llm.get_metrics()}
    return {name: int(found[name].value) if name in found else 0 for name in COUNTERS}


def decode(llm: Any, prompts: list[list[int]], tokens: int, cancels: bool) -> tuple[list[list[int]], list[int]]:
    """The texts, and the requests' steps after the first token: engine steps in which a row had new tokens."""
    from vllm import SamplingParams

    engine, asked = llm.llm_engine, SamplingParams(temperature=0, max_tokens=tokens)
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), {"prompt_token_ids": prompt}, asked)
        if cancels and index % 3 == 0:
            engine.add_request(f"cancelled {index}", {"prompt_token_ids": prompt[: len(prompt) // 2 + 1]}, asked)
    texts: dict[str, list[int]] = {}
    steps: dict[str, int] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            steps[output.request_id] = steps.get(output.request_id, -1) + 1
            texts[output.request_id] = list(output.outputs[0].token_ids)
            if output.request_id.startswith("cancelled") and steps[output.request_id] == CANCELLED_AFTER:
                engine.abort_request([output.request_id])
    names = [str(index) for index in range(len(prompts))]
    return [texts[name] for name in names], [steps[name] for name in names]


def main() -> None:
    job = json.load(sys.stdin)
    os.environ.update(ENVIRONMENT | dict(os.environ))
    from vllm import LLM

    options = {"enforce_eager": True, "disable_log_stats": False, "enable_prefix_caching": False}
    llm = LLM(
        job["model"],
        dtype=job["dtype"],
        max_model_len=job["longest"],
        max_num_seqs=job["at_once"],
        speculative_config=job["speculative"],
        additional_config=job["additional"],
        **options,
    )
    decode(llm, job["prompts"][:1], 16, False)  # warms up
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    watch, drafter = Watch(), getattr(runner, "drafter", None)
    if drafter is not None:
        drafter.propose = watch.around(drafter.propose, counts=True)
    if job["method"] == "lade":
        for thread in threading.enumerate():
            if thread.name == "lade-compiling":  # until it ends, the loops that draft run as Python
                thread.join()
        logits = drafter._logits
        logits._read = watch.around(logits._read)
    before, begun, processor = counters(llm), time.perf_counter(), time.process_time()
    texts, steps = decode(llm, job["prompts"], job["tokens"], job["cancels"])
    seconds, processor = time.perf_counter() - begun, time.process_time() - processor
    after = counters(llm)
    result = {name: after[name] - before[name] for name in COUNTERS}
    result |= {"texts": texts, "steps": steps, "seconds": seconds, "processor": processor}
    result |= {"drafting": watch.seconds, "calls": watch.calls, "rows": watch.rows}
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
