"""Attention of grouped heads that repeats no keys: what transformers' computes, and who gets it."""

from typing import Any

import pytest
import torch
from families import BY_NAME
from tiny import tiny_model
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import AttentionInterface

from lade.target.attention import packed
from lade.target.grouped import GroupedForward, repeats

KEYS, HEADS, GROUP = 9, 2, 3


class Layer(torch.nn.Module):
    """What transformers' function reads of a layer."""

    def __init__(self, group: int) -> None:
        super().__init__()
        self.num_key_value_groups = group


def states(nodes: int, group: int, masked: int = 1, sizes: tuple[int, int] = (4, 4)) -> tuple[torch.Tensor, ...]:
    """Queries, keys, values and a mask of so many heads."""
    noise = torch.Generator().manual_seed(nodes)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=noise)

    key, value = (drawn(1, HEADS, KEYS, size) for size in sizes)
    return drawn(1, group * HEADS, nodes, sizes[0]), key, value, drawn(1, masked, nodes, KEYS)


@pytest.mark.parametrize("sizes", [(4, 4), (4, 6)], ids=("alike", "unlike"))
@pytest.mark.parametrize("masked", ["together", "each"])
@pytest.mark.parametrize("group", [1, GROUP])
@pytest.mark.parametrize("nodes", [1, 5])
def test_attention_of_repeated_keys(nodes: int, group: int, masked: str, sizes: tuple[int, int]) -> None:
    given = states(nodes, group, group * HEADS if masked == "each" else 1, sizes)
    expected, _ = sdpa_attention_forward(Layer(group), *given, scaling=0.7)
    forward = GroupedForward()
    for _ in range(2):  # another layer, whose mask is known
        found, _ = forward.attend(*given, scaling=0.7)
        assert found.is_contiguous()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_layers_share_a_mask() -> None:
    forward, (query, key, value, mask) = GroupedForward(), states(5, GROUP)
    first = forward._hidden(mask, GROUP)
    forward.attend(query, key, value, mask)
    assert forward._hidden(mask, GROUP) is first
    assert forward._hidden(mask.clone(), GROUP) is not first


def test_what_is_not_known_is_refused() -> None:
    query, key, value, mask = states(5, GROUP)
    cases: list[tuple[Any, dict[str, Any]]] = [(None, {}), (mask, {"softcap": 3.0}), (mask, {"position_bias": mask})]
    for given, more in cases:
        with pytest.raises(NotImplementedError, match="the model changes its masks or its scores"):
            GroupedForward().attend(query, key, value, given, **more)


@pytest.mark.parametrize("traced", [False, True])
def test_what_is_compiled_finds_it_where_it_may(traced: bool) -> None:
    """A user's own compiled model keeps its code in all scopes, so it does not."""
    given, graphs, layer = states(5, GROUP), list[torch.fx.GraphModule](), Layer(GROUP)

    def noting(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    def attention(*tensors: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = AttentionInterface._global_mapping["sdpa"](layer, *tensors)[0]
        return found

    torch._dynamo.reset()
    with packed(GroupedForward(traced)):
        found = torch.compile(attention, fullgraph=True, backend=noting)(*given)
    torch.testing.assert_close(found, attention(*given), rtol=0, atol=1e-12)
    (graph,) = graphs
    assert traced != any(node.target == "expand" for node in graph.graph.nodes)


def test_models_that_repeat_keys() -> None:
    assert [repeats(tiny_model(BY_NAME[name], "sdpa")) for name in ("llama", "phi", "gpt2")] == [True, True, False]
