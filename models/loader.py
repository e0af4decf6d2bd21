"""Which of transformers' loaders a configuration needs: that of language models, or of those that read images too."""

from __future__ import annotations

from typing import Any

from lade.base.importing import IMPORTING


def loader_for(config: Any) -> Any:
    """The class whose `from_pretrained` and `from_config` make the model; that of language models if none is known."""
    with IMPORTING:
        from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM
        from transformers.models.auto import modeling_auto as known

    kind = type(config)
    reads_more = kind in known.MODEL_FOR_MULTIMODAL_LM_MAPPING and kind not in known.MODEL_FOR_CAUSAL_LM_MAPPING
    return AutoModelForMultimodalLM if reads_more and not config.is_encoder_decoder else AutoModelForCausalLM
