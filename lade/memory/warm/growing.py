"""A warm table with contexts of a user's own prompts: the model answers them, and its predictions along the answers
join those along its own texts.

The grown table is kept in a file beside the model's own table, and drafting prefers it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from lade.base.locks import fork_safe_lock
from lade.base.wrappers import unwrapped
from lade.memory.warm.answers import AnswerPlan, answer, answer_plan, joined
from lade.memory.warm.answersfile import AnswersFile
from lade.memory.warm.contexts import smoothed
from lade.memory.warm.file import table_file
from lade.memory.warm.progress import progress_bar
from lade.memory.warm.table import Progress, evaluating
from lade.memory.warm.texts import WarmTexts
from lade.memory.warm.warming import cached, check_arguments, own_table, store_grown
from lade.memory.warmtable import WarmTable

ANSWER = 128  # tokens of an answer, at most

_growing = fork_safe_lock()


def grow(
    model: Any,
    prompts: Iterable[Sequence[int]],
    *,
    length: int = ANSWER,
    top: int = 16,
    tokenizer: Any = None,
    progress: Progress | None = None,
) -> WarmTable:
    """The model's warm table with contexts from its answers to prompts; found again, or computed and stored.

    It replaces one that was grown from other prompts. After an interrupt, the same call continues behind the prompts
    that are answered.

    Args:
        model: as for `warm_up`.
        prompts: token ids each. Equal ones are answered once.
        length: tokens of an answer, at most.
        top: as for `warm_up`.
        tokenizer: as for `warm_up`.
        progress: called with how many tokens of answers are done, and of how many; `None`: a bar on a terminal.

    Raises:
        ValueError: names the argument.
        RuntimeError: the weights changed meanwhile; nothing is stored.
    """
    check_arguments(model, top, tokenizer, progress)
    model = unwrapped(model)
    asked = answer_plan(model, prompts, top, length)
    with _growing:
        own = own_table(model, top=top, tokenizer=tokenizer)
        plan = replace(asked, top=own.kept)
        name, path, found = prompts_hash(plan, own), table_file(model), cached(model, tokenizer=tokenizer)
        if found is not None and found.prompts == name:
            return found
        texts, seconds = _answered(model, plan, AnswersFile(model, plan, name), progress)
        contexts = smoothed(texts, own.tokens, own.probabilities, own.contexts)
        if table_file(model) != path:
            raise RuntimeError("model: its weights changed while it answered the prompts, so nothing was kept")
        table = replace(own, contexts=contexts, seconds=own.seconds + seconds, prompts=name)
        store_grown(model, table, tokenizer)
        return table


def prompts_hash(plan: AnswerPlan, own: WarmTable) -> str:
    """A hash of the prompts, of how they are answered and of the table that grows; 16 hexadecimal digits."""
    described = (own.digest, plan.top, plan.length, plan.ends, plan.prompts)
    return hashlib.blake2b(repr(described).encode(), digest_size=8).hexdigest()


def _answered(model: Any, plan: AnswerPlan, file: AnswersFile, progress: Progress | None) -> tuple[WarmTexts, float]:
    """All answers, and the seconds that they took; an interrupt saves those that are complete."""
    texts, before = file.load()
    start, done, total = time.perf_counter(), len(texts.written) * plan.length, len(plan.prompts) * plan.length
    with nullcontext(progress) if progress is not None else progress_bar("answers") as move, evaluating(model):

        def report(tokens: int) -> None:
            nonlocal done
            done += tokens
            move(done, total)

        try:
            while len(texts.written) < len(plan.prompts):
                texts = joined(texts, answer(model, plan, len(texts.written), report))
                file.save_now_and_then(texts, before + time.perf_counter() - start)
        except BaseException:
            file.save(texts, before + time.perf_counter() - start)
            raise
    file.remove()
    return texts, before + time.perf_counter() - start
