"""What a line of `--methods` asks for: methods of the registry, their options fixed.

Knows one of them by name, plain decoding; loads no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from lade.applications.bench.companion import Companion
from lade.applications.bench.method import FIXED
from lade.applications.bench.methods import METHODS, PLAIN, Decode, Method, MethodOptions
from lade.applications.bench.references import REFERENCES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ALL, DEFAULT = "all", "default"  # in place of names: whatever of them can run


@dataclass(frozen=True)
class Contender:
    """A method with its options fixed, under the label that the user wrote."""

    label: str
    decode: Decode
    method: Method
    named: bool = True  # asked for by name: where the model does not allow it, nothing runs
    warm: bool = False  # needs the model's warm table
    reference: str | None = None  # a name in REFERENCES: the text to decode with
    options: MethodOptions = field(default_factory=MethodOptions)
    rival: Contender | None = None  # what it is compared with, where that is neither plain decoding nor itself
    draft: Companion | None = None  # the second model, once it is loaded

    @property
    def compared_with(self) -> str:
        """The label of the contender whose text and speed those of this one are compared with."""
        if self.rival is not None:
            return self.rival.label
        return self.label if self.method.against == self.method.name else PLAIN

    def refusal(self, model: PreTrainedModel, batch: int) -> str | None:
        """Why it cannot decode so many prompts side by side with this model; None where it can."""
        return self.too_many(batch) or self.unable(model)

    def too_many(self, batch: int) -> str | None:
        """Why it does not decode so many prompts side by side, whatever the model is."""
        if batch > 1 and not self.method.batches:
            return f"decodes one prompt at a time, not a batch of {batch}"
        return None if self.rival is None else self.rival.too_many(batch)

    def unable(self, model: PreTrainedModel) -> str | None:
        """Why it cannot decode with this model, however many prompts there are."""
        reason = self.method.refusal(model, self.options, self.draft)
        return self.rival.unable(model) if reason is None and self.rival is not None else reason

    def beside(self, draft: Companion | None) -> Contender:
        """The same with the second model, where the method takes one."""
        rival = None if self.rival is None else self.rival.beside(draft)
        if not self.method.drafts:
            return replace(self, rival=rival)
        return replace(self, rival=rival, draft=draft, decode=partial(self.decode, draft=draft))


def contenders(specs: str, options: MethodOptions, methods: Mapping[str, Method] = METHODS) -> list[Contender]:
    """What `name,name:option=value:option=value,...` asks for, plain decoding always among it and first.

    An option written behind a name holds for that contender only, so one run can compare several settings. `all` and
    `default` stand for the methods of that kind whose needs are met.
    """
    named = [label.strip() for label in specs.split(",") if label.strip()]
    twice = next((label for label in named if named.count(label) > 1), None)
    if twice is not None:
        raise ValueError(f"method {twice!r} stands twice")
    labels = [PLAIN]
    for label in named:
        members = [method.name for method in _members(label, methods) if not _missing(method, options)]
        labels += members if label in (ALL, DEFAULT) else [label]
    found: dict[str, Contender] = {}
    for label in dict.fromkeys(labels):
        contender = _contender(label, options, methods, label in named)
        for one in (contender.rival, contender):
            if one is not None:
                found.setdefault(one.label, one)
    return list(found.values())


def unready(specs: str, options: MethodOptions, methods: Mapping[str, Method] = METHODS) -> dict[str, str]:
    """Methods that `all` or `default` leave out, and why."""
    members = [method for label in specs.split(",") for method in _members(label.strip(), methods)]
    return {
        method.name: f"needs the option {', '.join(_missing(method, options))}"
        for method in members
        if _missing(method, options)
    }


def _members(label: str, methods: Mapping[str, Method]) -> list[Method]:
    """What a label that stands for several methods stands for."""
    if label == ALL:
        return list(methods.values())
    return [method for method in methods.values() if method.default] if label == DEFAULT else []


def parsed(label: str, options: MethodOptions, methods: Mapping[str, Method] = METHODS) -> tuple[Method, MethodOptions]:
    """The method that a label names, and its options."""
    name, *settings = label.split(":")
    if name not in methods:
        raise ValueError(f"unknown method {name!r}: known are {', '.join(methods)}")
    method = methods[name]
    own = replace(options, **dict(_setting(setting, label) for setting in settings))
    missing = _missing(method, own)
    if missing:
        raise ValueError(f"method {name!r} needs the option {', '.join(missing)}")
    if own.reference is not None and own.reference not in REFERENCES:
        raise ValueError(f"method {label!r}: reference={own.reference!r}: allowed are {', '.join(REFERENCES)}")
    return method, own


def _missing(method: Method, options: MethodOptions) -> list[str]:
    return [need for need in method.needs if getattr(options, need) is None]


def _contender(label: str, options: MethodOptions, methods: Mapping[str, Method], named: bool) -> Contender:
    method, own = parsed(label, options, methods)
    return Contender(
        label,
        method.factory(own),
        method,
        named=named,
        warm=method.warms and bool(own.warm),
        reference=own.reference if method.refers else None,
        options=own,
        rival=_rival(label, options, methods),
    )


def _rival(label: str, options: MethodOptions, methods: Mapping[str, Method]) -> Contender | None:
    """What a contender is compared with, under the same distribution; None for plain decoding and for itself."""
    name, *settings = label.split(":")
    against = methods[name].against
    if against in (PLAIN, name):
        return None
    kept = [setting for setting in settings if setting.partition("=")[0] in methods[name].distribution]
    return _contender(":".join([against, *kept]), options, methods, named=False)


KINDS = {name: hint for name, hint in get_type_hints(MethodOptions).items() if name not in FIXED}


def _setting(setting: str, label: str) -> tuple[str, Any]:
    """`window=15` as ("window", 15)."""
    name, _, value = setting.partition("=")
    if name not in KINDS:
        raise ValueError(f"method {label!r}: unknown option {name!r}, known are {', '.join(KINDS)}")
    allowed = get_args(KINDS[name]) or (KINDS[name],)
    if str in allowed:
        return name, value
    kind, wanted = (float, "a number") if float in allowed else (int, "an integer")
    try:
        number = kind(value)
    except ValueError:
        raise ValueError(f"method {label!r}: {name}={value!r} is not {wanted}") from None
    if not math.isfinite(number):
        raise ValueError(f"method {label!r}: {name}={value!r} is not {wanted}")
    return name, number
