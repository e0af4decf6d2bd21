"""What an answer may be asked to keep to: OpenAI's response formats and vLLM's structured outputs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lade.applications.serve.fields import UNICODE, Fields, Text

MOST_CHOICES, LONGEST, LONGEST_REGEX = 128, 500, 5000

ShortText = Annotated[str, Field(min_length=1, max_length=LONGEST), UNICODE]


class TextFormat(Fields):
    type: Literal["text"]


class ObjectFormat(Fields):
    """Any JSON object."""

    type: Literal["json_object"]


class SchemaFields(Fields):
    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    definition: dict[str, Any] = Field(alias="schema")
    description: Text | None = None
    strict: bool | None = None


class SchemaFormat(Fields):
    """JSON that keeps to a schema, whether or not `strict` is set."""

    type: Literal["json_schema"]
    json_schema: SchemaFields


ResponseFormat = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


class StructuredOutputs(Fields):
    """vLLM's way to say what an answer keeps to: one of these."""

    definition: dict[str, Any] | None = Field(None, alias="json")
    regex: Annotated[str, Field(min_length=1, max_length=LONGEST_REGEX), UNICODE] | None = None
    choice: Annotated[list[ShortText], Field(min_length=1, max_length=MOST_CHOICES)] | None = None
    json_object: bool | None = None

    @model_validator(mode="after")
    def _is_one(self) -> StructuredOutputs:
        if sum(bool(each) for each in (self.definition is not None, self.regex, self.choice, self.json_object)) != 1:
            raise ValueError("must have exactly one of json, regex, choice and json_object")
        return self
