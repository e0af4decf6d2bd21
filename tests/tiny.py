"""Builds the tiny random models of `families` and `unbranchable`, and prompts for them. Knows nothing of lade.

Weights are drawn here, from a seed, wide enough that logits spread and greedy text falls into loops, so that a decoder
that drafts has something to accept.
"""

import copy
from functools import cache

import torch
from families import BY_NAME, PAD, VOCAB, Family
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaForCausalLM, PreTrainedModel

FIRST_WORD = 3  # below it stand padding, beginning and end
LOGIT_SPREAD = 2.0


@cache
def tiny_model(family: Family, attention: str = "eager", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The family's model, built once per session; its texts end by length alone unless `eos_token_id` is given."""
    config = AutoConfig.for_model(family.model_type, **family.config)
    factory = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(family.seed)
        model = factory.from_config(config, attn_implementation=attention, **_experts(dtype)).eval()
        draw_weights(model)
        spread_logits(model)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD
    return model.to(dtype)


def own_llama(kind: type[LlamaForCausalLM] = LlamaForCausalLM) -> LlamaForCausalLM:
    """A copy of the tiny llama of this class, which a test may change."""
    sound = tiny_model(BY_NAME["llama"], "sdpa")
    model = kind(copy.deepcopy(sound.config)).eval()
    model.load_state_dict(sound.state_dict())
    model.generation_config = copy.deepcopy(sound.generation_config)
    return model


def with_low_caps(model: PreTrainedModel) -> PreTrainedModel:
    """The model with soft caps of attention that its small scores come near to, where it has any."""
    for module in model.modules():
        if getattr(module, "attn_logit_softcapping", None) is not None:
            module.attn_logit_softcapping = 0.5
    return model


def words(*lengths: int, seed: int = 0) -> dict[str, Tensor]:
    """A left-padded batch of random prompts of these lengths, as keyword arguments of `generate`."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((len(lengths), max(lengths)), PAD)  # [B, P]
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, -length:] = torch.randint(FIRST_WORD, VOCAB, (length,), generator=generator)
        mask[row, -length:] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _experts(dtype: torch.dtype) -> dict[str, str]:
    """The grouped matrix product of mixture-of-experts models takes no float64."""
    return {"experts_implementation": "eager"} if dtype == torch.float64 else {}


@torch.no_grad()
def draw_weights(model: PreTrainedModel) -> None:
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.2)
        else:  # norms, biases, sinks: near what the family starts them at, no two alike
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.get_input_embeddings().weight.mul_(4)  # the last word weighs more than the words before it: texts loop


@torch.no_grad()
def spread_logits(model: PreTrainedModel) -> None:
    output = model.get_output_embeddings()
    if output is None or model.config.is_encoder_decoder:
        return
    for _ in range(3):  # tied embeddings feed back into the logits
        spread = model(input_ids=words(16)["input_ids"], use_cache=False).logits.std()
        output.weight.mul_(LOGIT_SPREAD / spread)
