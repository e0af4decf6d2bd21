"""The types of the fields of requests, and rules across fields as the OpenAPI page tells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, WithJsonSchema

from lade.base.shown import shown

Json = dict[str, Any]
NULL: Json = {"type": "null"}
LARGEST = 1 << 53  # from it on a float does not tell an integer from its neighbours


def _text(value: str) -> str:
    """JSON can hold half a character, which no tokenizer takes."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError("must be text in Unicode, got a surrogate without its other half") from error
    return value


def _nothing(value: Any) -> Any:
    if value or (isinstance(value, dict | int | float) and value is not False):
        raise ValueError("must be left out, since the server does not have it")
    return value


def _whole(value: Any) -> Any:
    """For JSON 5.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST else value


def _always(value: Any) -> Any:
    if value is not None and value is not True:
        raise ValueError(f"must be true or left out, since the server does it always, got {shown(value)}")
    return value


UNICODE = AfterValidator(_text)
Text = Annotated[str, UNICODE]
Always = Annotated[Any, AfterValidator(_always), WithJsonSchema({"enum": [None, True]})]
NotBuilt = Annotated[Any, AfterValidator(_nothing), WithJsonSchema({"enum": [None, False, [], ""]})]
WHOLE = BeforeValidator(_whole)
TokenId = Annotated[int, Field(ge=0), WHOLE]


def by_type(classes: Mapping[str, str], untyped: str | None = None, others: str | None = None) -> Discriminator:
    """Tells the classes of a union apart, by the field `type`.

    Args:
        classes: their names, which are tags of the union, by the values of the field.
        untyped: the name of the class of objects without the field.
        others: of objects with other values; `None` where they are not taken.
    """

    def name(value: Any) -> str | None:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        if kind is None and isinstance(value, dict | Fields):
            return untyped
        return classes.get(kind, others) if isinstance(kind, str) else others

    allowed = f"Item should have the type {' or '.join(map(repr, classes))}, as others are not taken"
    return Discriminator(name, custom_error_type="item_type", custom_error_message=allowed)


class Fields(BaseModel):
    """An object of a request: types are not converted, and no other fields are taken."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def all_of(*rules: Json) -> Json:
    """The JSON schema of an object that keeps to all of these rules."""
    return {"allOf": list(rules)}


def either(*rules: Json) -> Json:
    return {"anyOf": list(rules)}


def where(*required: str, **properties: Json) -> Json:
    """An object with these fields required, whose properties have these schemas where they are given."""
    return {"properties": properties} | ({"required": list(required)} if required else {})
