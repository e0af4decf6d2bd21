"""GPT-Neo: local layers cut their window by key index, silently wrong for a tree; global layers decode draft trees."""

from typing import Any


def refusal(config: Any) -> str | None:
    local = "local" in config.attention_layers
    return "local attention windows follow the flat order of tokens (gpt_neo)" if local else None
