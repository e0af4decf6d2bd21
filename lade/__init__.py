"""Lookahead decoding for Hugging Face causal language models: the same text in fewer forward passes, no draft model.

A name is imported when it is first used, so that `import lade` loads neither torch nor transformers.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lade.base.importing import IMPORTING
from lade.base.version import VERSION

if TYPE_CHECKING:  # what editors and type checkers read; `_PUBLIC` says the same
    from lade import models as models
    from lade.config.default import config_lade as config_lade
    from lade.config.settings import LookaheadConfig as LookaheadConfig
    from lade.core.request import Request as Request
    from lade.core.stats import GenerationStats as GenerationStats
    from lade.core.stats import last_stats as last_stats
    from lade.core.stats import log_history as log_history
    from lade.core.stats import save_log as save_log
    from lade.distributed.errors import RankError as RankError
    from lade.entry.api import decoding_method as decoding_method
    from lade.entry.api import generate as generate
    from lade.entry.assisted import assisted_generate as assisted_generate
    from lade.entry.assisted import prompt_lookup_generate as prompt_lookup_generate
    from lade.entry.augment import augment_all as augment_all
    from lade.entry.augment import lookahead as lookahead
    from lade.entry.augment import restore_all as restore_all
    from lade.entry.engine import Engine as Engine
    from lade.entry.fallback import FallbackWarning as FallbackWarning
    from lade.entry.methods import DraftModel as DraftModel
    from lade.entry.methods import MultiCandidate as MultiCandidate
    from lade.entry.methods import SelfSpeculative as SelfSpeculative
    from lade.entry.methods import self_speculative as self_speculative
    from lade.entry.warming import warm_up as warm_up
    from lade.memory.corpusfile import Corpus as Corpus
    from lade.memory.pools import drop_pools as drop_pools
    from lade.memory.pools import load_pool as load_pool
    from lade.memory.pools import save_pool as save_pool
    from lade.models.packing import pack_weights as pack_weights
    from lade.target.contrast import Contrast as Contrast
    from lade.target.skipset import SkipSet as SkipSet
    from lade.weights.packing import unpack_weights as unpack_weights

__version__ = VERSION
_PUBLIC = {
    "lade.config.default": ("config_lade",),
    "lade.config.settings": ("LookaheadConfig",),
    "lade.core.request": ("Request",),
    "lade.core.stats": (
        "GenerationStats",
        "last_stats",
        "log_history",
        "save_log",
    ),
    "lade.distributed.errors": ("RankError",),
    "lade.entry.api": (
        "decoding_method",
        "generate",
    ),
    "lade.entry.assisted": (
        "assisted_generate",
        "prompt_lookup_generate",
    ),
    "lade.entry.augment": (
        "augment_all",
        "lookahead",
        "restore_all",
    ),
    "lade.entry.engine": ("Engine",),
    "lade.entry.fallback": ("FallbackWarning",),
    "lade.entry.methods": (
        "DraftModel",
        "MultiCandidate",
        "SelfSpeculative",
        "self_speculative",
    ),
    "lade.memory.corpusfile": ("Corpus",),
    "lade.memory.pools": (
        "drop_pools",
        "load_pool",
        "save_pool",
    ),
    "lade.entry.warming": ("warm_up",),
    "lade.models.packing": ("pack_weights",),
    "lade.target.contrast": ("Contrast",),
    "lade.target.skipset": ("SkipSet",),
    "lade.weights.packing": ("unpack_weights",),
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}


def __dir__() -> list[str]:
    """The public names; modules of the package are reached all the same."""
    return sorted([name for name in globals() if name.startswith("__")] + [*_MODULES, "models"])


if not TYPE_CHECKING:  # else every name would be there for type checkers
    __all__ = sorted(_MODULES)

    def __getattr__(name: str) -> Any:
        """A public name from its module, or a module of the package; remembered where others find it."""
        if name in _MODULES:
            with IMPORTING:
                found = globals()[name] = getattr(import_module(_MODULES[name]), name)
            return found
        if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")
