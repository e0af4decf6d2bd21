"""JSON schemas without the keywords that ask nothing, such as `uniqueItems: false`, which llguidance refuses.

Knows JSON schemas; no grammar.
"""

from __future__ import annotations

from typing import Any

# Keywords whose values are schemas, lists of them, and schemas by names. Values of all others are left as they are:
# an `enum` or `default` may hold what looks like a schema.
ONE = frozenset(
    ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
) | {"unevaluatedItems", "unevaluatedProperties"}
LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
NAMED = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))

ALL: tuple[Any, ...] = (True, {})  # schemas of any value
NOTHING: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedItems": ALL,
    "unevaluatedProperties": ALL,
    "propertyNames": ALL,
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "not": (False,),
}
# Other formats are names that JSON Schema does not know, such as pydantic's "password": they are remarks.
FORMATS = frozenset(
    (
        *("date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri"),
        *("iri-reference", "json-pointer", "regex", "relative-json-pointer", "time", "uri", "uri-reference"),
        *("uri-template", "uuid"),
    )
)


DEEPEST = 128  # levels; llguidance refuses deeper schemas


def relaxed(schema: Any, levels: int = DEEPEST) -> Any:
    """The same schema without keywords that ask nothing; as it is where it has more levels."""
    if not isinstance(schema, dict) or not levels:
        return schema
    return {name: _inside(name, value, levels - 1) for name, value in schema.items() if not _asks_nothing(name, value)}


def _asks_nothing(name: str, value: Any) -> bool:
    if name == "format":
        return isinstance(value, str) and value not in FORMATS
    return any(type(value) is type(each) and value == each for each in NOTHING.get(name, ()))


def _inside(name: str, value: Any, levels: int) -> Any:
    if name in LISTS and isinstance(value, list):
        return [relaxed(each, levels) for each in value]
    if name in NAMED and isinstance(value, dict):
        return {key: relaxed(each, levels) for key, each in value.items()}
    return relaxed(value, levels) if name in ONE else value
