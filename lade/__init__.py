"""Lookahead decoding for Hugging Face causal language models: the same text in fewer forward passes, no draft model.

A name is imported when it is first used, so that `import lade` loads neither torch nor transformers.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lade.importing import IMPORTING
from lade.version import VERSION

if TYPE_CHECKING:  # what editors and type checkers read; `_MODULES` says the same
    from lade import models as models
    from lade.api import decoding_method, generate
    from lade.assisted import assisted_generate, prompt_lookup_generate
    from lade.augment import augment_all, lookahead, restore_all
    from lade.config import LookaheadConfig, config_lade
    from lade.contrast import Contrast
    from lade.fallback import FallbackWarning
    from lade.methods import DraftModel, MultiCandidate, SelfSpeculative, self_speculative
    from lade.pools import drop_pools, load_pool, save_pool
    from lade.skipset import SkipSet
    from lade.stats import GenerationStats, last_stats, log_history, save_log
    from lade.warm import warm_up

__version__ = VERSION
__all__ = [
    "Contrast",
    "DraftModel",
    "FallbackWarning",
    "GenerationStats",
    "LookaheadConfig",
    "MultiCandidate",
    "SelfSpeculative",
    "SkipSet",
    "assisted_generate",
    "augment_all",
    "config_lade",
    "decoding_method",
    "drop_pools",
    "generate",
    "last_stats",
    "load_pool",
    "log_history",
    "lookahead",
    "prompt_lookup_generate",
    "restore_all",
    "save_log",
    "save_pool",
    "self_speculative",
    "warm_up",
]
_MODULES = {
    "Contrast": "lade.contrast",
    "DraftModel": "lade.methods",
    "FallbackWarning": "lade.fallback",
    "GenerationStats": "lade.stats",
    "LookaheadConfig": "lade.config",
    "MultiCandidate": "lade.methods",
    "SelfSpeculative": "lade.methods",
    "SkipSet": "lade.skipset",
    "assisted_generate": "lade.assisted",
    "augment_all": "lade.augment",
    "config_lade": "lade.config",
    "decoding_method": "lade.api",
    "drop_pools": "lade.pools",
    "generate": "lade.api",
    "last_stats": "lade.stats",
    "load_pool": "lade.pools",
    "log_history": "lade.stats",
    "lookahead": "lade.augment",
    "prompt_lookup_generate": "lade.assisted",
    "restore_all": "lade.augment",
    "save_log": "lade.stats",
    "save_pool": "lade.pools",
    "self_speculative": "lade.methods",
    "warm_up": "lade.warm",
}


def __dir__() -> list[str]:
    """The public names; modules of the package are reached all the same."""
    return sorted([name for name in globals() if name.startswith("__")] + [*__all__, "models"])


if not TYPE_CHECKING:  # else every name would be there for type checkers

    def __getattr__(name: str) -> Any:
        """A public name from its module, or a module of the package; remembered where others find it."""
        if name in _MODULES:
            with IMPORTING:
                found = globals()[name] = getattr(import_module(_MODULES[name]), name)
            return found
        if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")
