"""What a model's drafts need beforehand, made once: its warm table, and the machine code of the loops that draft."""

from __future__ import annotations

import logging
from typing import Any

from lade.base.shown import invalid
from lade.drafters import compiling
from lade.entry.route import reason_for_plain
from lade.entry.submission import trial
from lade.facts.precision import is_offloaded
from lade.memory.warm import warming
from lade.memory.warm.table import Progress, evaluating
from lade.memory.warmtable import WarmTable

# Arguments of `model.generate` in place of what the model's generation config says: a call may say otherwise.
ANY_CALL = {
    "num_beams": 1,
    "do_sample": False,
    "use_cache": True,
    "output_attentions": False,
    "output_hidden_states": False,
}
_log = logging.getLogger(__name__)


def warm_up(model: Any, *, top: int = 16, tokenizer: Any = None, progress: Progress | None = None) -> WarmTable:
    """The model's warm table: from memory or the cache folder, else computed and stored in both.

    Where the loops that draft are not compiled on this machine yet, it is awaited, and the log says so.

    Concurrent threads compute it once. Concurrent processes may each compute it; they leave one file. A table that is
    computed anew replaces one with contexts of a user's prompts (`lade warm --prompts`).

    Args:
        model: a causal language model of transformers, or a wrapper (PEFT) around it; it is not changed.
        top: how many tokens to keep per entry, and per place of the texts, at least.
        tokenizer: texts begin as its chat template does; a table that was made with another vocabulary is computed
            anew. `None`: the tokenizer that lies beside the model's weights, if there is one.
        progress: called with how many tokens went through the model, and of how many; `None`: a bar on a terminal.

    Raises:
        ValueError: names the argument; also where the model decodes no draft trees, which alone read a table.
        RuntimeError: the weights changed meanwhile; nothing is stored.
    """
    warming.check_arguments(model, top, tokenizer, progress)
    check_drafts(model)
    begin_compiling()
    table = warming.warm_up(model, top=top, tokenizer=tokenizer, progress=progress)
    compiling.wait()
    return table


def begin_compiling() -> None:
    """Load the machine code of the loops that draft in the background; where it is compiled before, the log says so."""
    compiling.begin()
    if compiling.compiles():
        _log.warning("lade: compiling the loops that draft, once on this machine, which takes minutes")


def check_drafts(model: Any) -> None:
    """ValueError where a model decodes no draft trees, whatever the call; of an offloaded one it is not asked."""
    if is_offloaded(model):
        return
    with evaluating(model):
        reason = reason_for_plain(trial(model, **ANY_CALL), fuse=False)
    if reason is not None:
        raise invalid("model", f"one that decodes draft trees ({reason})", model)
