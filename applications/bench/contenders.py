"""The methods that `--methods` selects, with their options fixed.

Knows only plain decoding by name; loads no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from lade.applications.bench.companion import Companion
from lade.applications.bench.method import FIXED
from lade.applications.bench.methods import METHODS, PLAIN, BenchMethod, Decode, MethodOptions
from lade.applications.bench.references import REFERENCES
from lade.base.shown import invalid

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ALL, DEFAULT = "all", "default"  # instead of names: those methods that can run


@dataclass(frozen=True)
class Contender:
    """A method with fixed options, under the label given by the user."""

    label: str
    decode: Decode
    method: BenchMethod
    named: bool = True  # given by name: an error if the model does not support it
    warm: bool = False  # needs the model's warm table
    reference: str | None = None  # a name in REFERENCES: the reference text
    options: MethodOptions = field(default_factory=MethodOptions)
    counterpart: Contender | None = None  # its baseline, if that is neither plain decoding nor itself
    draft: Companion | None = None  # the second model, once loaded

    @property
    def compared_with(self) -> str:
        """The label of its baseline for text and speed."""
        if self.counterpart is not None:
            return self.counterpart.label
        own = self.method.name != PLAIN and self.method.compared_with == self.method.name
        return self.label if own else PLAIN

    def refusal(self, model: PreTrainedModel, batch: int) -> str | None:
        """Why it cannot decode such a batch with this model; None if it can."""
        return self.too_many(batch) or self.unable(model)

    def too_many(self, batch: int) -> str | None:
        """Why it cannot decode such a batch with any model."""
        if batch > 1 and not self.method.takes_batches:
            return f"decodes one prompt at a time, not a batch of {batch}"
        return None if self.counterpart is None else self.counterpart.too_many(batch)

    def unable(self, model: PreTrainedModel) -> str | None:
        """Why it cannot decode with this model at any batch size."""
        reason = self.method.refusal(model, self.options, self.draft)
        if reason is None and not self.named:
            reason = self.method.unless_named(model)
        return self.counterpart.unable(model) if reason is None and self.counterpart is not None else reason

    def beside(self, draft: Companion | None) -> Contender:
        """The same with the second model, if the method takes one."""
        counterpart = None if self.counterpart is None else self.counterpart.beside(draft)
        if not self.method.takes_draft:
            return replace(self, counterpart=counterpart)
        return replace(self, counterpart=counterpart, draft=draft, decode=partial(self.decode, draft=draft))


def contenders(specs: str, options: MethodOptions, methods: Mapping[str, BenchMethod] = METHODS) -> list[Contender]:
    """The contenders of `name,name:option=value:option=value,...`; plain decoding is always the first.

    An option after a name applies to that contender only, so one run can compare several settings. `all` and `default`
    select the methods of that kind whose needed options are given.
    """
    named = [label.strip() for label in specs.split(",") if label.strip()]
    if not named:
        raise invalid("methods", f"names separated by commas, of {', '.join(methods)}", specs)
    twice = next((label for label in named if named.count(label) > 1), None)
    if twice is not None:
        raise ValueError(f"methods must be different, got {twice!r} twice")
    labels = [PLAIN]
    for label in named:
        members = [method.name for method in _members(label, methods) if not _missing(method, options)]
        labels += members if label in (ALL, DEFAULT) else [label]
    found: dict[str, Contender] = {}
    for label in dict.fromkeys(labels):
        contender = _contender(label, options, methods, label in named)
        for one in (contender.counterpart, contender):
            if one is not None:
                found.setdefault(one.label, one)
    return list(found.values())


def unready(specs: str, options: MethodOptions, methods: Mapping[str, BenchMethod] = METHODS) -> dict[str, str]:
    """Methods that `all` or `default` leave out, with the reason."""
    members = [method for label in specs.split(",") for method in _members(label.strip(), methods)]
    return {
        method.name: f"needs the option {', '.join(_missing(method, options))}"
        for method in members
        if _missing(method, options)
    }


def _members(label: str, methods: Mapping[str, BenchMethod]) -> list[BenchMethod]:
    """The methods of the labels `all` and `default`; none for other labels."""
    if label == ALL:
        return list(methods.values())
    return [method for method in methods.values() if method.default] if label == DEFAULT else []


def parsed(
    label: str, options: MethodOptions, methods: Mapping[str, BenchMethod] = METHODS
) -> tuple[BenchMethod, MethodOptions]:
    """The method that a label names, and its options."""
    name, *settings = label.split(":")
    if name not in methods:
        raise invalid("a method", f"one of {', '.join(methods)}", name)
    method = methods[name]
    own = replace(options, **dict(_setting(setting, label) for setting in settings))
    missing = _missing(method, own)
    if missing:
        raise ValueError(f"method {name!r} needs the option {', '.join(missing)}")
    if own.reference is not None and own.reference not in REFERENCES:
        raise invalid(f"method {label!r}: reference", " or ".join(REFERENCES), own.reference)
    return method, own


def _missing(method: BenchMethod, options: MethodOptions) -> list[str]:
    return [need for need in method.needs if getattr(options, need) is None]


def _contender(label: str, options: MethodOptions, methods: Mapping[str, BenchMethod], named: bool) -> Contender:
    method, own = parsed(label, options, methods)
    return Contender(
        label,
        method.factory(own),
        method,
        named=named,
        warm=method.uses_warm_table and bool(own.warm),
        reference=own.reference if method.takes_reference else None,
        options=own,
        counterpart=_counterpart(label, options, methods),
    )


def _counterpart(label: str, options: MethodOptions, methods: Mapping[str, BenchMethod]) -> Contender | None:
    """The baseline with the same distribution; None if it is plain decoding or the contender itself."""
    name, *settings = label.split(":")
    baseline = methods[name].compared_with
    if baseline in (PLAIN, name):
        return None
    kept = [setting for setting in settings if setting.partition("=")[0] in methods[name].distribution]
    return _contender(":".join([baseline, *kept]), options, methods, named=False)


KINDS = {name: hint for name, hint in get_type_hints(MethodOptions).items() if name not in FIXED}


def _setting(setting: str, label: str) -> tuple[str, Any]:
    """`window=15` as ("window", 15)."""
    name, _, value = setting.partition("=")
    if name not in KINDS:
        raise invalid(f"method {label!r}: an option", f"one of {', '.join(KINDS)}", name)
    allowed = get_args(KINDS[name]) or (KINDS[name],)
    if str in allowed:
        return name, value
    kind, wanted = (float, "a number") if float in allowed else (int, "an integer")
    try:
        number = kind(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise invalid(f"method {label!r}: {name}", wanted, value)
    return name, number
