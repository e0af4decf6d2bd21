"""vLLM's side of its proposers' interface, without vLLM: a batch of rows under a model that is a function of the text.

Rows join and leave, change places, wait, and lose a part of their drafts, as the scheduler of vLLM lets them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lade.vllm import Proposer

LONGEST = 96  # of a text
Text = list[int]


def config(tokens: int = 4, vocabulary: int = 32, **options: Any) -> Any:
    """What a proposer reads of a `VllmConfig`; `options` are ours."""
    return SimpleNamespace(
        additional_config={"lade": {"adapt": False, "warm_table": "off"} | options},
        speculative_config=SimpleNamespace(num_speculative_tokens=tokens),
        scheduler_config=SimpleNamespace(async_scheduling=False, max_num_seqs=4),
        parallel_config=SimpleNamespace(rank=0, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1),
        device_config=SimpleNamespace(device_type="cpu"),
        model_config=SimpleNamespace(
            max_model_len=LONGEST,
            get_vocab_size=lambda: vocabulary,
            hf_config=SimpleNamespace(to_dict=lambda: {"vocab_size": vocabulary}),
            dtype=torch.float32,
            quantization=None,
            enforce_eager=True,
        ),
    )


class Model:
    """Its hidden states are its logits."""

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def install(patch: pytest.MonkeyPatch, version: str = "0.32.0") -> None:
    """Let this process have a vLLM, of which there is a version only."""
    found = ModuleType("vllm")
    found.__version__ = version  # type: ignore[attr-defined]
    patch.setitem(__import__("sys").modules, "vllm", found)


def loaded(settings: Any) -> tuple[Proposer, Model]:
    proposer, model = Proposer(settings), Model()
    proposer.load_model(model)
    return proposer, model


@dataclass(eq=False)
class Row:
    """A request.

    Attributes:
        waits: steps until its prompt is complete.
        drafted: what the next step carries.
    """

    text: Text
    waits: int = 0
    drafted: Text = field(default_factory=list)
    steps: int = 0
    accepted: int = 0
    offered: int = 0


class Engine:
    """One proposer's batch.

    Args:
        after: the model: a text -> the next token.
        vocabulary: V.

    Attributes:
        rows: the batch.
        computed: the text before each line of the last step's logits.
    """

    def __init__(self, settings: Any, after: Callable[[Sequence[int]], int], vocabulary: int = 32) -> None:
        self.proposer, self.model = loaded(settings)
        self.after, self.vocabulary = after, vocabulary
        self.rows: list[Row] = []
        self.computed: list[Text] = []

    def step(self, keep: Callable[[Row], int] = lambda row: 1 << 10, calls: int = 1, proposes: bool = True) -> None:
        """Compute all rows.

        Args:
            keep: how much of a row's draft is computed.
            calls: of the model for logits.
            proposes: whether the proposer is called; if not, drafts are zeros.
        """
        self.computed = []
        sampled = [self._decoded(row, keep(row)) for row in self.rows]
        logits = torch.zeros(len(self.computed), self.vocabulary)
        for line, text in enumerate(self.computed):
            logits[line, self.after(text)] = 9.0
        for _ in range(calls):
            self.model.compute_logits(logits)
        if not proposes:
            for row in self.rows:
                row.drafted = [0] * 4
            return
        ids = np.full((len(self.rows) + 1, LONGEST + 8), -1, np.int32)
        for place, row in enumerate(self.rows):
            ids[place, : len(row.text)] = row.text
        lengths = np.array([len(row.text) for row in self.rows] + [0])
        proposals = self.proposer.propose(sampled, lengths, ids, slot_mappings=None)
        assert len(proposals) == len(self.rows)
        for row, draft in zip(self.rows, proposals, strict=True):
            row.drafted = draft

    def _decoded(self, row: Row, keep: int) -> Text:
        """The row's new tokens."""
        if row.waits:
            row.waits -= 1
            self.computed.append([*row.text])
            return []
        draft, new = row.drafted[:keep], [self.after(row.text)]
        self.computed += [[*row.text, *draft[:length]] for length in range(len(draft) + 1)]
        while len(new) <= len(draft) and new[-1] == draft[len(new) - 1]:
            new.append(self.after([*row.text, *new]))
        row.text += new
        row.steps, row.accepted, row.offered = row.steps + 1, row.accepted + len(new) - 1, row.offered + len(draft)
        return new
