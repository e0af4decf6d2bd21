"""How a chat template makes a prompt of messages: the fields of requests that say so."""

from __future__ import annotations

from inspect import signature
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator
from transformers import PreTrainedTokenizerBase

from lade.applications.serve.fields import Fields, Json, either, where
from lade.applications.serve.messages import MOST_TOOLS, Tool

RESERVED = frozenset(signature(PreTrainedTokenizerBase.apply_chat_template).parameters) - {"documents", "kwargs"}


def _variables(value: dict[str, Any]) -> dict[str, Any]:
    for name in sorted(RESERVED & value.keys()):
        raise ValueError(f"must have variables of the chat template, got {name!r}, which the server sets")
    return value


TemplateVariables = Annotated[
    dict[str, Any],
    AfterValidator(_variables),
    Field(json_schema_extra={"propertyNames": {"not": {"enum": sorted(RESERVED)}}}),
]
NOT: Json = {"enum": [None, False]}
BEGUN = either(where(continue_final_message=NOT), where(add_generation_prompt=NOT))


class Templated(Fields):
    """The functions that are told to the model, and vLLM's options of templates.

    Attributes:
        chat_template_kwargs: variables of the template, such as `enable_thinking`.
        add_generation_prompt: whether the prompt ends where an answer begins, as it does unless the last message is
            continued.
        continue_final_message: whether the answer continues the last message.
    """

    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS)] | None = None
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @model_validator(mode="after")
    def _continues(self) -> Templated:
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("must have either continue_final_message or add_generation_prompt")
        return self

    @property
    def functions_offered(self) -> list[Json]:
        """The functions that the answer may call."""
        return [tool.function.model_dump(exclude_none=True, exclude={"strict"}) for tool in self.tools or []]

    @property
    def functions_told(self) -> list[Json]:
        """The functions that the prompt tells of."""
        return self.functions_offered

    @property
    def template_options(self) -> Json:
        """Arguments of `apply_chat_template`."""
        continued, begun = bool(self.continue_final_message), self.add_generation_prompt
        ends = {"continue_final_message": continued, "add_generation_prompt": not continued if begun is None else begun}
        return ends | (self.chat_template_kwargs or {})
