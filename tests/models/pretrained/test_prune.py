"""What a draft takes from its teacher: all of it where nothing is cut, and the better part where something is."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lade.models.pretrained.prune import cut_from

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 8, "vocab_size": 64, "tie_word_embeddings": True,
}  # fmt: skip
SAMPLE = torch.arange(60).view(3, 20)


def model(seed: int, **sizes: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    made = LlamaForCausalLM(LlamaConfig(**SIZES | sizes)).eval()
    for name, weight in made.named_parameters():
        torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.2)
    return made


@torch.no_grad()
def distance(one: LlamaForCausalLM, other: LlamaForCausalLM) -> float:
    return float((one(SAMPLE).logits - other(SAMPLE).logits).square().mean().sqrt())


def test_where_nothing_is_cut_the_logits_stay() -> None:
    """The axes are turned all the same. The last norm cannot turn with them, so it is even here."""
    teacher, draft = model(0), model(1)
    torch.nn.init.constant_(teacher.model.norm.weight, 1.3)
    cut_from(draft, teacher, SAMPLE)
    assert distance(draft, teacher) < 1e-4
    assert not torch.equal(draft.model.embed_tokens.weight, teacher.model.embed_tokens.weight)


@pytest.mark.parametrize(
    "part", [{"num_attention_heads": 4, "num_key_value_heads": 2}, {"intermediate_size": 24}, {"hidden_size": 16}]
)
def test_what_adds_nothing_is_what_is_cut(part: dict[str, int]) -> None:
    """A teacher of which half is silent, in its middle, is kept whole by half its size."""
    teacher, draft = model(0), model(1, **part)
    torch.nn.init.constant_(teacher.model.norm.weight, 1.3)
    with torch.no_grad():
        for layer in teacher.model.layers:
            if "num_key_value_heads" in part:
                layer.self_attn.o_proj.weight[:, 16:48] = 0
            if "intermediate_size" in part:
                layer.mlp.down_proj.weight[:, 12:36] = 0
            if "hidden_size" in part:
                layer.self_attn.o_proj.weight[8:24] = 0
                layer.mlp.down_proj.weight[8:24] = 0
        if "hidden_size" in part:
            teacher.model.embed_tokens.weight[:, 8:24] = 0
    cut_from(draft, teacher, SAMPLE)
    assert distance(draft, teacher) < 1e-3


def test_layers_are_taken_evenly_from_first_to_last() -> None:
    teacher, draft = model(0), model(1, num_hidden_layers=2)
    with torch.no_grad():
        for layer in teacher.model.layers[1:3]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    teacher.model.norm.weight.data.fill_(1.3)
    cut_from(draft, teacher, SAMPLE)
    assert distance(draft, teacher) < 1e-4


def test_the_teacher_is_left_as_it_was() -> None:
    teacher = model(0)
    before = copy.deepcopy(teacher.state_dict())
    cut_from(model(1, hidden_size=16), teacher, SAMPLE)
    assert all(torch.equal(weight, before[name]) for name, weight in teacher.state_dict().items())
    assert not any(module._forward_pre_hooks for module in teacher.modules())


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"hidden_size": 40}, "hidden_size of size must be at most the teacher's 32, got 40"),
        ({"num_hidden_layers": 5}, "num_hidden_layers of size must be at most the teacher's 4, got 5"),
        ({"head_dim": 4}, "heads of size 8, 2 per key-value head, .* got heads of size 4, 2 per key-value head"),
        ({"num_attention_heads": 4}, "got heads of size 8, 1 per key-value head"),
    ],
)
def test_a_draft_that_is_no_part_of_the_teacher_is_refused(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cut_from(model(1, **sizes), model(0), SAMPLE)
