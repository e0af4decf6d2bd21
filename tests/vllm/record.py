"""Writes `recording.json`: all calls that vLLM made of a proposer while the shipped code model answered a few requests.

Run it where vLLM and lade are installed: `PYTHONPATH=tests/vllm python tests/vllm/record.py`. There are three rows at
once, so that requests join and leave, and few tokens per step, so that prompts come in parts and drafts are cut.
"""

import json
import os
from pathlib import Path
from typing import Any

from lade.vllm import Proposer

FILE = Path(__file__).with_name("recording.json")
MODEL = Path(__file__).parents[2] / "models/pretrained/lade-code-8M"
PROMPTS = (
    "def is_prime(n):\n",
    "def add(a, b):\n",
    "def is_prime(n):\n",
    'def reverse(text):\n    """Return the text backwards, as a string."""\n',
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "for i in range(10):\n",
)
LONGEST, ROWS, TOKENS = 160, 3, 4


class Recorder(Proposer):
    """Keeps the arguments and the answers of all calls, and the most likely token of each line of the logits."""

    calls: list[dict[str, Any]] = []  # noqa: RUF012 - of the one that vLLM makes

    def load_model(self, model: Any) -> None:
        super().load_model(model)
        read = self._logits._read
        self._said: list[list[int]] = []

        def noted(logits: Any) -> None:
            self._said.append(logits.argmax(-1).tolist())
            read(logits)

        self._logits._read = noted  # type: ignore[method-assign]

    def propose(self, sampled: Any, lengths: Any, ids: Any, slot_mappings: Any = None) -> list[list[int]]:
        drafts = super().propose(sampled, lengths, ids, slot_mappings)
        texts = [ids[place, : lengths[place]].tolist() for place in range(len(sampled))]
        self.calls.append({"sampled": [*map(list, sampled)], "texts": texts, "said": self._said, "drafts": drafts})
        self._said = []
        return drafts


def main() -> None:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    import record
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(MODEL),
        dtype="float32",
        max_model_len=LONGEST,
        max_num_seqs=ROWS,
        max_num_batched_tokens=12,
        enable_chunked_prefill=True,
        enforce_eager=True,
        speculative_config={"method": "custom_class", "model": "record.Recorder", "num_speculative_tokens": TOKENS},
        additional_config={"lade": {"adapt": False, "warm_table": "off"}},
    )
    record.Recorder.calls.clear()
    asked = [SamplingParams(temperature=0, max_tokens=8 + 4 * place) for place in range(len(PROMPTS))]
    texts = [answer.outputs[0].token_ids for answer in llm.generate(list(PROMPTS), asked, use_tqdm=False)]
    found = {"calls": record.Recorder.calls, "texts": [*map(list, texts)]}
    FILE.write_text(json.dumps(found, separators=(",", ":")).replace('{"sampled', '\n{"sampled') + "\n")


if __name__ == "__main__":
    main()
