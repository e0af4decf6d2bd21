"""Widens and deepens a trained LLaMA without changing its logits: the small model's text at a big model's cost.

Maps old weights to new ones. Knows no speed, files or names of shapes.
"""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from lade.base.shown import invalid

FIELDS = {  # argument of `widen`: field of the model's configuration
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
}
MOST_DIFFERENCE = 1e-3  # of a logit, in float32
ROUNDINGS = 2  # allowed mean difference in half precision, in multiples of the original's mean rounding error
PROBE = 32  # tokens of a checked text
ROPE_BY_FREQUENCY = ("default", "linear", "llama3")  # types that depend on the frequency, not on the head size


@dataclass(frozen=True)
class Axis:
    """Map of a dimension: entry `old[i]` of the old weight is copied to `new[i]` of the new one."""

    size: int
    old: Tensor  # [n]
    new: Tensor  # [n]


def widen(
    model: PreTrainedModel,
    *,
    hidden_size: int | None = None,
    intermediate_size: int | None = None,
    num_layers: int | None = None,
    num_attention_heads: int | None = None,
    num_key_value_heads: int | None = None,
    head_dim: int | None = None,
    vocab_size: int | None = None,
    max_position_embeddings: int | None = None,
) -> LlamaForCausalLM:
    """A wider and deeper model with the same logits, dtype and device; sizes default to the model's own.

    Extra vocabulary entries have the logit of token 0 and come after it, so greedy text stays the same; sampled text
    does where top-k or top-p excludes token 0.

    Raises:
        ValueError: a size does not fit the model, or the model cannot be widened.
    """
    given = {
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_layers": num_layers,
        "num_attention_heads": num_attention_heads,
        "num_key_value_heads": num_key_value_heads,
        "head_dim": head_dim,
        "vocab_size": vocab_size,
        "max_position_embeddings": max_position_embeddings,
    }
    own = own_sizes(model)
    sizes = own | {name: size for name, size in given.items() if size is not None}
    _check_sizes(own, sizes)
    config = _wide_config(model.config, sizes)
    with torch.device("meta"):  # the weights are made once, where they are to lie
        wide: LlamaForCausalLM = LlamaForCausalLM._from_config(
            config, dtype=model.dtype, attn_implementation=model.config._attn_implementation
        )
    wide.load_state_dict(_wide_state(model, config), assign=True)
    wide.model.rotary_emb = type(wide.model.rotary_emb)(config).to(model.device)  # has no weights, but buffers
    wide.generation_config = copy.deepcopy(model.generation_config)
    return wide.eval()


def own_sizes(model: PreTrainedModel) -> dict[str, int]:
    """The model's sizes by argument of `widen`; ValueError where the model cannot be widened."""
    old = model.config
    if old.model_type != "llama":
        raise invalid("model", "a LLaMA model", old.model_type)
    rope = old.rope_parameters["rope_type"]
    if rope not in ROPE_BY_FREQUENCY:
        raise invalid("model", f"one with RoPE of type {', '.join(ROPE_BY_FREQUENCY)}", rope)
    return {name: getattr(old, field) for name, field in FIELDS.items()}


@torch.no_grad()
def logit_difference(model: PreTrainedModel, wide: LlamaForCausalLM) -> float:
    """The largest difference between the logits of the two models, with the original in float32.

    Raises:
        ValueError: it exceeds `MOST_DIFFERENCE`, and rounding does not explain it: in half precision, the mean
            difference exceeds `ROUNDINGS` times the original's own mean rounding error.
    """
    ids = _probe(model)
    exact = copy.deepcopy(model).float()(ids).logits  # [2, PROBE, V]
    found = (wide(ids).logits[..., : exact.shape[-1]].float() - exact).abs()
    own = (model(ids).logits.float() - exact).abs()
    allowed = ROUNDINGS * float(own.mean())
    if not (found.max() <= MOST_DIFFERENCE or found.mean() <= allowed):  # NaN fails too
        raise ValueError(
            f"the widened model's logits differ by {found.mean():.1e} on average, rounding explains {allowed:.1e}"
        )
    return float(found.max())


def _probe(model: PreTrainedModel) -> Tensor:
    """Token ids [2, PROBE]: greedy text, and tokens from the whole vocabulary; rounding errors are larger there."""
    text = torch.tensor([[model.config.bos_token_id or 0]], device=model.device)
    for _ in range(PROBE - 1):
        text = torch.cat([text, model(text).logits[:, -1:].argmax(-1)], dim=1)
    spread = torch.arange(PROBE, device=model.device)[None] * (model.config.vocab_size // PROBE)
    return torch.cat([text, spread])


def _check_sizes(own: dict[str, int], sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise invalid(name, "an integer", size)
        if size < own[name]:
            raise invalid(name, f"at least {own[name]}, the model's own", size)
    heads, kv_heads, head_dim = (sizes[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    if head_dim % own["head_dim"]:
        raise invalid("head_dim", f"a multiple of {own['head_dim']}, the model's own", head_dim)
    if sizes["hidden_size"] % heads:  # transformers refuses to load such a model
        raise invalid("hidden_size", f"a multiple of num_attention_heads={heads}", sizes["hidden_size"])
    if heads % kv_heads:
        raise invalid("num_attention_heads", f"a multiple of num_key_value_heads={kv_heads}", heads)
    needed = own["num_key_value_heads"] * _copies(
        own["num_attention_heads"] // own["num_key_value_heads"], heads // kv_heads
    )
    if kv_heads < needed:
        raise invalid("num_key_value_heads", f"at least {needed} for num_attention_heads={heads}", kv_heads)


def _wide_config(old: LlamaConfig, sizes: dict[str, int]) -> LlamaConfig:
    config = copy.deepcopy(old)
    for name, size in sizes.items():
        setattr(config, FIELDS[name], size)
    # The mean of squares is over more entries, of which only the old ones are not zero.
    config.rms_norm_eps = old.rms_norm_eps * old.hidden_size / config.hidden_size
    config.tie_word_embeddings = False
    config.lade_widened = {field: getattr(old, field) for field in FIELDS.values()}
    return config


def _wide_state(model: PreTrainedModel, config: LlamaConfig) -> dict[str, Tensor]:
    old_state = model.state_dict() | {"lm_head.weight": model.get_output_embeddings().weight.detach()}
    wide = {name: _place(weight, *_axes(name, model.config, config)) for name, weight in old_state.items()}
    kinds = {name.split(".", 3)[3]: weight for name, weight in wide.items() if name.startswith("model.layers.0.")}
    for layer in range(model.config.num_hidden_layers, config.num_hidden_layers):  # a layer of zeros adds nothing
        wide |= {f"model.layers.{layer}.{kind}": torch.zeros_like(weight) for kind, weight in kinds.items()}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        wide[name][model.config.vocab_size :] = wide[name][0]  # a tie with token 0 loses to it: the lower index wins
    return wide


def _axes(name: str, old: LlamaConfig, new: LlamaConfig) -> tuple[Axis, Axis | None, float]:
    """Output axis, input axis (None: a vector) and factor of the weight called `name`."""
    hidden = _padded(old.hidden_size, new.hidden_size)
    ffn = _padded(old.intermediate_size, new.intermediate_size)
    vocab = _padded(old.vocab_size, new.vocab_size)
    query, key = _head_axes(old, new)
    module, kind = name.split(".")[-2:]
    if module.endswith("norm"):
        return hidden, None, math.sqrt(old.hidden_size / new.hidden_size)
    out, into, factor = {
        "embed_tokens": (vocab, hidden, 1.0),
        "lm_head": (vocab, hidden, 1.0),
        "q_proj": (query, hidden, math.sqrt(new.head_dim / old.head_dim)),  # attention divides by sqrt(head_dim)
        "k_proj": (key, hidden, 1.0),
        "v_proj": (key, hidden, 1.0),
        "o_proj": (hidden, query, 1.0),
        "gate_proj": (ffn, hidden, 1.0),
        "up_proj": (ffn, hidden, 1.0),
        "down_proj": (hidden, ffn, 1.0),
    }[module]
    return out, None if kind == "bias" else into, factor


def _place(weight: Tensor, out: Axis, into: Axis | None, factor: float) -> Tensor:
    values = (weight.float() * factor).to(weight.dtype)
    if into is None:
        wide = weight.new_zeros(out.size)
        wide[out.new] = values[out.old]
        return wide
    wide = weight.new_zeros(out.size, into.size)
    wide[out.new[:, None], into.new] = values[out.old[:, None], into.old]
    return wide


def _padded(old: int, new: int) -> Axis:
    return Axis(new, torch.arange(old), torch.arange(old))


def _head_axes(old: LlamaConfig, new: LlamaConfig) -> tuple[Axis, Axis]:
    """Query and key-value axes: an old kv head is copied until each of its query heads has a place at a copy."""
    group = old.num_attention_heads // old.num_key_value_heads
    slots = new.num_attention_heads // new.num_key_value_heads
    copies = _copies(group, slots)
    queries = [
        (head, (head // group * copies + head % group // slots) * slots + head % group % slots)
        for head in range(old.num_attention_heads)
    ]
    keys = [(head // copies, head) for head in range(old.num_key_value_heads * copies)]
    return _spread(queries, old, new, new.num_attention_heads), _spread(keys, old, new, new.num_key_value_heads)


def _copies(group: int, slots: int) -> int:
    """Copies of an old kv head with `group` query heads, where a new kv head serves `slots` query heads."""
    return math.ceil(group / slots)


def _spread(heads: list[tuple[int, int]], old: LlamaConfig, new: LlamaConfig, count: int) -> Axis:
    """Rows of (old head, new head) pairs. Within a RoPE half, old index i moves to the index of equal frequency."""
    half = torch.arange(old.head_dim // 2)
    wide_half = half * (new.head_dim // old.head_dim)
    old_rows = torch.cat([half, half + old.head_dim // 2])
    new_rows = torch.cat([wide_half, wide_half + new.head_dim // 2])
    return Axis(
        count * new.head_dim,
        torch.cat([head * old.head_dim + old_rows for head, _ in heads]),
        torch.cat([head * new.head_dim + new_rows for _, head in heads]),
    )
