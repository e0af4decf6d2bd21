"""What the proposer reads of vLLM's configuration, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from lade.base.arguments import check_path, check_switch
from lade.base.shown import invalid, shown

OLDEST, NEWER = "0.32", "0.33"  # tested: from the one on, before the other
NAME = "lade"  # our part of vLLM's `additional_config`
AUTO, OFF = "auto", "off"


class VersionError(RuntimeError):
    """This version of vLLM is not tested."""


@dataclass(frozen=True, slots=True)
class Options:
    """Our part of vLLM's `additional_config`.

    Attributes:
        adapt: whether drafts are as long as they pay, by measured step times; else as long as they may be.
        warm_table: a warm table's file; `"auto"`: that of the model's weights in lade's cache folder, if it is there;
            `"off"`: none.
        corpus: a corpus's file (`lade corpus`); `None`: none.
    """

    adapt: bool = True
    warm_table: str = AUTO
    corpus: str | None = None


def options_of(config: Any) -> Options:
    """The options of a `VllmConfig`.

    Raises:
        ValueError: names the option.
    """
    whole = config.additional_config
    given = whole.get(NAME, {}) if isinstance(whole, Mapping) else {}
    names = tuple(Options.__dataclass_fields__)
    if not isinstance(given, Mapping) or not set(given) <= set(names):
        raise invalid(f"additional_config[{NAME!r}]", f"an object with the names {', '.join(names)}", given)
    options = Options(**given)
    check_switch(f"additional_config[{NAME!r}]['adapt']", options.adapt)
    check_path(f"additional_config[{NAME!r}]['warm_table']", options.warm_table)
    if options.corpus is not None:
        check_path(f"additional_config[{NAME!r}]['corpus']", options.corpus)
    return options


def check_version(version: str) -> None:
    """Raises VersionError outside the tested range."""
    oldest, found, newer = (Version(each).release for each in (OLDEST, version, NEWER))
    if not oldest <= found < newer:
        raise VersionError(
            f"lade.vllm.Proposer is tested with vLLM {OLDEST} up to, but not including, {NEWER}; this is {version}"
        )


def check_config(config: Any) -> None:
    """Raises ValueError, names the setting, where the proposer's interface is another one."""
    if config.scheduler_config.async_scheduling:
        raise invalid("async_scheduling", "off with lade.vllm.Proposer (--no-async-scheduling)", True)
    tokens = config.speculative_config.num_speculative_tokens
    if not isinstance(tokens, int) or tokens < 1:
        raise ValueError(f"num_speculative_tokens must be at least 1, got {shown(tokens)}")


def drafts_here(config: Any) -> bool:
    """Whether the drafts of this process are used: those of the first process of a tensor parallel group are."""
    parallel = config.parallel_config
    return bool(parallel.rank % parallel.tensor_parallel_size == 0)
