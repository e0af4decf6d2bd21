"""What a call returns, in the form of plain decoding. Knows requests and records, no model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import transformers
from packaging.version import Version
from transformers.generation import GenerateDecoderOnlyOutput

from lade.core.request import Request
from lade.engine.scores import Record
from lade.target.call import Call

MARKS_USER_CACHES = Version(transformers.__version__) >= Version("5.17")  # older ones: any cache may be the user's


def returns_cache(call: Call) -> bool:
    """Whether the caller sees the cache afterwards: in the output, or as their own cache."""
    returned = call.generation_config.return_dict_in_generate
    return bool(returned or getattr(call.cache, "_is_user_defined", not MARKS_USER_CACHES))


def result_of(call: Call, requests: Sequence[Request], record: Record) -> torch.Tensor | GenerateDecoderOnlyOutput:
    """[B, P + new] token ids, or an output that holds them, as the call's generation config asks."""
    config, sequences = call.generation_config, _sequences(call, requests)
    if not config.return_dict_in_generate:
        return sequences
    return GenerateDecoderOnlyOutput(
        sequences=sequences,
        scores=_by_index(record.scores) if config.output_scores else None,
        logits=_by_index(record.logits) if config.output_logits else None,
        past_key_values=call.cache,
    )


def _sequences(call: Call, requests: Sequence[Request]) -> torch.Tensor:
    ids, pad = call.input_ids, call.pad_token
    longest = max(request.emitted for request in requests)
    new = [request.tokens[request.prompt_length :] + [pad] * (longest - request.emitted) for request in requests]
    # int64 whatever the prompt's type, as the result of plain decoding.
    return torch.cat([ids, torch.tensor(new, dtype=torch.long, device=ids.device)], dim=1)


def _by_index(rows: Sequence[Sequence[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """From [1, V] tensors per row to one [B, V] tensor per emitted index."""
    return tuple(torch.cat(column) for column in zip(*rows, strict=True))
