"""Checks that schemathesis loads: a body that keeps to its schema is refused only for reasons that no schema tells, and
one that does not is refused."""

import re
from typing import Any

import schemathesis
from jsonschema_rs import validator_for
from schemathesis.specs.openapi.checks import negative_data_rejection

REASONS = (
    r"must have at most \d+ tokens",
    r"must be a text of at least one token",
    r"must be text only, since the server reads no images for this model",
    r"must have at most \d+ images",
    r"must be an image in base64",
    r"must be a whole PNG, JPEG, WebP or GIF image",
    r"must be token ids from 0 to \d+",
    r"must be an object with token ids from 0 to \d+ as its names",
    r"must be such that n times the prompts is at most",
    r"must have best_of equal to n",
    r"must have min_tokens of at most",
    r"must have a tool_choice that names one of tools",
    r"must be (a JSON schema|a regular expression|texts) that can be followed",
    r"must have exactly one of json, regex, choice and json_object",
    r"must have either .*structured_outputs",
    r"must have ignore_eos and min_tokens only without",
    r"lade\.corpus must be a corpus that this key added",
    r"documents must hold 1 to \d+ tokens",
    r"corpus_id must be one of at most \d+ corpora of a key",
)


@schemathesis.check
def refused_for_a_reason(context: Any, response: Any, case: Any) -> None:
    """In the place of schemathesis's `positive_data_acceptance`, which takes no refusal."""
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code != 400:
        return
    message = response.json()["error"]["message"]
    assert re.search("|".join(REASONS), message), f"a body that keeps to its schema was refused: {message}"


@schemathesis.check
def refused_where_it_breaks_the_schema(context: Any, response: Any, case: Any) -> None:
    """In the place of schemathesis's own check: what it changes for one branch of a union may be right by another."""
    if response.status_code >= 400 or not _body_alone_is_changed_and_right(case):
        negative_data_rejection(context, response, case)


def _body_alone_is_changed_and_right(case: Any) -> bool:
    changed = [] if case.meta is None else [at for at, each in case.meta.components.items() if each.mode.is_negative]
    if [at.value for at in changed] != ["body"] or not isinstance(case.body, dict):
        return False
    page, operation = case.operation.schema.raw_schema, case.operation
    body = page["paths"][operation.path][operation.method]["requestBody"]["content"]["application/json"]["schema"]
    return bool(validator_for(body | {"components": page["components"]}).is_valid(case.body))
