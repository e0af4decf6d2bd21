"""The static step that walks on the device: no graph break, the text of plain decoding, two transfers."""

import functools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from staticmodels import FAMILIES, ReadPrompts, model_for, plain, slots_on_meta
from test_transfers import META, Transfers
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import AttentionInterface

from lade.core.tree import Draft, TreeBuilder, chain
from lade.static import fusing
from lade.static.choices import Greedy
from lade.static.graphs import Graphs
from lade.static.inputs import StepInputs, StepRow, size_of
from lade.static.runner import StaticRunner
from lade.static.step import StaticStep
from lade.static.walking import WalkingStep

NEW, DEPTH, NODES, ROWS = 20, 3, 32, 4  # of a compiled step


def draft(root: int, follows: Sequence[int], noise: random.Random) -> Draft:
    """Some of the tokens that follow, each beside a wrong one that comes before it."""
    builder, parent = TreeBuilder(root), 0
    for token in follows[: noise.randint(0, DEPTH)]:
        builder.add_path(parent, [(token + 1) % 60 + 3], "wrong")
        parent = builder.add_path(parent, [token], "right")
    return builder.build()


class Twin(ReadPrompts):
    """A loop around a static step: as many rows as prompts."""

    def __init__(self, model: PreTrainedModel, lengths: Sequence[int], sampled: bool) -> None:
        super().__init__(model, lengths, max(lengths) + NEW + NODES, DEPTH, sampled)
        self.texts = [[token] for token in self.first]
        self.runner = StaticRunner(WalkingStep(model, self.slots, self.chooser))

    def decode(self, reference: Sequence[Sequence[int]]) -> int:
        """To the end of all rows. Returns the number of steps."""
        noise, steps = random.Random(0), 0
        while active := [row for row, text in enumerate(self.texts) if len(text) < NEW]:
            drafts = [
                draft(self.texts[row][-1], reference[row][len(self.texts[row]) : NEW - 1], noise) for row in active
            ]
            slots = [self.order[row] for row in active]
            if self.noise is not None:
                for slot, row in zip(slots, active, strict=True):
                    self.ring.fill(self.noise, slot, row, len(self.texts[row]), NEW)
            for row, found in zip(active, self.runner.run(slots, drafts), strict=True):
                assert len(found.path) == len(found.tokens)
                self.texts[row] += found.tokens
            steps += 1
        return steps


class OneGraph(Graphs):
    """All steps in one size, compiled by dynamo, which must trace them whole."""

    def __init__(self, step: WalkingStep) -> None:
        super().__init__(step)
        self.compiled = torch.compile(step, fullgraph=True, dynamic=False, backend="eager")

    def _compute(self, inputs: Any, core: Any) -> Any:
        with self.step.attending(traced=True):
            return self.compiled(inputs)


@pytest.fixture
def one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lade.static.inputs.nodes_bucket", lambda nodes: NODES)
    monkeypatch.setattr("lade.static.inputs.rows_bucket", lambda rows: 1 if rows == 1 else ROWS)


@pytest.mark.parametrize(
    ("name", "lengths", "sampled"), [("llama", (9,), False), ("gemma3", (9, 4, 11, 6), True)], ids=("greedy", "sampled")
)
@torch.no_grad()
def test_text_of_plain_decoding(name: str, lengths: tuple[int, ...], sampled: bool) -> None:
    """In sizes that change from step to step, as rows end."""
    model = model_for(name, len(lengths))
    reference = plain(model, lengths, NEW, sampled)
    torch.manual_seed(3)
    twin = Twin(model, lengths, sampled)
    steps = twin.decode(reference)
    assert twin.texts == reference
    assert steps < NEW - 4


@pytest.mark.real
@pytest.mark.parametrize("sampled", [False, True], ids=("greedy", "sampled"))
@pytest.mark.parametrize("lengths", [(9,), (9, 4, 11, 6)], ids=("alone", "four"))
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.usefixtures("one_size")
@torch.no_grad()
def test_one_graph(name: str, lengths: tuple[int, ...], sampled: bool) -> None:
    """What dynamo traces whole has no decision of the host in it: a CUDA graph can be captured of it."""
    model = model_for(name, len(lengths))
    reference = plain(model, lengths, NEW, sampled)
    torch.manual_seed(3)
    twin = Twin(model, lengths, sampled)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    twin.runner.graphs = OneGraph(twin.runner.graphs.step)
    twin.decode(reference)
    assert twin.texts == reference
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("kind", [StaticStep, WalkingStep])
@torch.no_grad()
def test_a_compiler_writes_keys_and_values_in_place(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does where each layer's memory is an input by itself, to which is written once: else it copies all of them."""
    twin = Twin(model_for("llama", 1), (9,), False)
    slots, row = twin.slots, StepRow(0, Draft.alone(7), length=9)
    step = twin.runner.graphs.step if kind is WalkingStep else StaticStep(twin.runner.graphs.step.model, slots)
    large, repeated = list[str](), list[torch.Size]()
    shape = slots.capacity, slots.cache.layers[0].keys.shape[3]

    def noting(module: torch.fx.GraphModule, inputs: Any) -> Any:
        sized = [(node, node.meta.get("val")) for node in module.graph.nodes]
        large.extend(
            f"{node.target} of {node.args[0].op}" if node.args else node.op
            for node, value in sized
            if isinstance(value, torch.Tensor) and value.numel() >= 2 * slots.cache.layers[0].keys.numel()
        )
        clones = [value for node, value in sized if node.target == torch.ops.aten.clone.default]
        repeated.extend(value.shape for value in clones if value.shape[-2:] == shape)
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    monkeypatch.setattr(fusing, "BACKEND", aot_autograd(fw_compiler=noting))
    graphs = Graphs(step, fused=True)
    found, _ = graphs.run([row])
    layers = len(slots.cache.layers)
    assert not repeated, "for each head of a group"
    assert large == ["placeholder"] * layers + ["aten.index_copy.default of placeholder"] * layers
    slots.lengths[0] = 9
    assert torch.equal(found, Graphs(step).run([row])[0])


class Copies(TorchDispatchMode):
    """The operations, other than views, that return keys or values of a whole slot."""

    def __init__(self, capacity: int, size: int) -> None:
        super().__init__()
        self.shape, self.names = (capacity, size), list[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.shape[-2:] == self.shape and not function.is_view:
            self.names.append(str(function))
        return found


@pytest.mark.parametrize("nodes", [1, 6])
@pytest.mark.parametrize("name", ["llama", "qwen3", "phi"])
@torch.no_grad()
def test_one_row_copies_no_keys(name: str, nodes: int) -> None:
    """Neither where several heads share them nor elsewhere, at 8k tokens, on the meta device."""
    model, slots = slots_on_meta(name, 1, 8192)
    step = StaticStep(model, slots)
    rows = [StepRow(0, chain(range(3, 3 + nodes), asked=True), 4)]
    inputs = StepInputs(torch.zeros(size_of(rows).numbers, dtype=torch.long, device=META), size_of(rows))
    with Copies(slots.capacity, slots.cache.layers[0].keys.shape[3]) as copies:
        step(inputs)
    assert copies.names == []


def test_a_user_s_own_attention_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one row, in place of which lade's would repeat no keys."""
    twin = Twin(model_for("llama", 1), (9,), False)
    assert StaticStep(twin.runner.graphs.step.model, twin.slots).dispatches
    own = functools.partial(sdpa_attention_forward)
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", own)  # type: ignore[arg-type]
    assert not StaticStep(twin.runner.graphs.step.model, twin.slots).dispatches


@pytest.mark.parametrize("rows", [1, 3])
@torch.no_grad()
def test_two_transfers(rows: int) -> None:
    """On the meta device, of which the host can read nothing else."""
    model, slots = slots_on_meta("llama", rows, 60)
    runner, noise = StaticRunner(WalkingStep(model, slots, Greedy())), random.Random(0)
    for _ in range(2):
        drafts = [draft(7, [5, 6, 7], noise) for _ in range(rows)]
        with Transfers() as transfers:
            runner.run(range(rows), drafts)
        assert len(transfers.down) == len(transfers.up) == 1, (transfers.down, transfers.up)
