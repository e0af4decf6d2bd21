"""GPT-Neo: global layers branch; local ones cut their window by the key's index, wrong beyond it without an error."""

from typing import Any


def refusal(config: Any) -> str | None:
    local = "local" in config.attention_layers
    return "local attention windows follow the flat order of tokens (gpt_neo)" if local else None
