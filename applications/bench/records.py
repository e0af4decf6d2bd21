"""One run of one method on one turn of one prompt, as a line of the results file, and its strict parser.

Knows no statistics, no model and no method.
"""

import json
import math
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from lade.base.shown import invalid
from lade.files.jsonobject import DIGITS, json_object, read_lines
from lade.files.regularfile import MEBIBYTE

RESULTS = "results.jsonl"  # in the folder of a run
MAX_BYTES = 1024 * MEBIBYTE  # about a million records


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of one method on one prompt.

    Times are of the call of `generate` that decoded the prompt. Prompts of a batch share that call, so each of their
    records holds the whole call's times, forwards and memory; `share` is the record's part of the seconds. Tokens,
    steps, scores and draft counts are the prompt's own.

    Attributes:
        method: its label on the command line, options included.
        task: the suite's or the prompt file's name.
        turn: 0 for a conversation's first question. Later ones follow plain decoding's answers, for every method.
        repeat: 0 for the first run of the prompt.
        seed: of the global generator, set before the call.
        temperature: 0 for greedy decoding.
        batch: prompts side by side, as requested; `rows`: the actual number, smaller in the last batch of a task.
        context: tokens that every prompt is cut or filled to; None: prompts keep their length.
        prompt_tokens: of the row, without padding.
        new_tokens: up to the row's end, EOS included.
        steps: forwards after the prefill that include the row.
        tokens_per_step: new_tokens / steps; None without steps.
        mean_forward_tokens: tokens of a row in a forward after the prefill, with padding; None without such a forward.
        seconds: the whole call.
        prefill_seconds: up to the end of the first forward: the time to the first token.
        model_seconds: inside the forwards after it; on CUDA the device's time.
        host_seconds: outside the forwards.
        draft_seconds: the part of it spent on drafting, if the method reports it.
        compared_with: the baseline for text and speed: plain decoding, unless another distribution is decoded.
        identical_to_plain: whether the new tokens equal the baseline's in the same trial.
        digest: hash of the new tokens, to compare texts of two runs; empty in old records.
        parting: where a greedy text diverges: `index` in the row's text, both `tokens`, and of the logits there the
            top-2 `gap`, one `ulp`, the gap in `ulps`, the largest `allowed` gap, and whether it is `explained`.
        proposed: draft nodes sent through the model, by source.
        verified: those whose parent was accepted, so that they were compared with the model's choice.
        accepted: those that the model chose.
        verified_by_depth: depth in the draft tree -> steps that compared the model's choice with drafts there.
        accepted_by_depth: depth -> steps that accepted a draft there.
        accepted_lengths: tokens emitted by a step -> number of steps; empty if the method does not report it.
        widths: tokens of a row in a forward after the prefill, with padding -> number of forwards.
        decisions: reason for the size of a forward -> number of forwards.
        repeated_4grams: share of the new tokens' 4-grams that occur earlier in them; 0 without 4-grams.
        text_measures: of the new tokens, by name (`lade.applications.text_measures`); those they are long enough for.
            Entropies are in nats over tokens, or with `text_units` "words" in bits over words.
        log_likelihood: mean over the new tokens under the reference model, in nats; None without one.
        score: whether the answer is right; None without a scorer, or without --execute where it is needed.
        peak_memory_bytes: peak allocated on the device during the call; None on a CPU.
        fallback: why the method fell back to plain decoding.
        warm_seconds: one-time cost of the warm table, if the method used it.
    """

    method: str
    task: str
    prompt_id: str | int
    category: str = ""
    turn: int = 0
    repeat: int = 0
    seed: int = 0
    temperature: float = 0.0
    batch: int = 1
    rows: int = 1
    context: int | None = None
    prompt_tokens: int
    new_tokens: int
    steps: int
    tokens_per_step: float | None
    mean_forward_tokens: float | None
    seconds: float
    prefill_seconds: float
    model_seconds: float
    host_seconds: float
    draft_seconds: float = 0.0
    compared_with: str = "plain"
    identical_to_plain: bool
    digest: str = ""
    parting: dict[str, Any] | None = None
    proposed: dict[str, int] = field(default_factory=dict)
    verified: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    verified_by_depth: dict[int, int] = field(default_factory=dict)
    accepted_by_depth: dict[int, int] = field(default_factory=dict)
    accepted_lengths: dict[int, int] = field(default_factory=dict)
    widths: dict[int, int] = field(default_factory=dict)
    decisions: dict[str, int] = field(default_factory=dict)
    repeated_4grams: float = 0.0
    text_measures: dict[str, float] = field(default_factory=dict)
    log_likelihood: float | None = None
    score: bool | None = None
    peak_memory_bytes: int | None = None
    fallback: str | None = None
    warm_seconds: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Of the call, for this row alone."""
        return self.new_tokens / self.seconds

    @property
    def share(self) -> float:
        """The row's share of the call's seconds; over all records they sum to the time that passed."""
        return self.seconds / self.rows


HINTS = get_type_hints(Record)
NEEDED = tuple(f.name for f in fields(Record) if f.default is MISSING and f.default_factory is MISSING)


def as_line(record: Record) -> str:
    return json.dumps(asdict(record)) + "\n"


def read_records(path: Path) -> list[Record]:
    """All records of a results file. ValueError names the file, the line and the invalid field."""
    return [read_record(line, f"{path}:{number}") for number, line in read_lines(path, MAX_BYTES)]


def read_record(line: str, where: str) -> Record:
    """One line. ValueError begins with `where`."""
    row = json_object(line, where)
    unknown = sorted(set(row) - set(HINTS))
    if unknown:
        raise invalid(f"{where}: a field", f"one of {', '.join(HINTS)}", unknown[0])
    missing = [name for name in NEEDED if name not in row]
    if missing:
        raise ValueError(f"{where}: the field {missing[0]!r} is missing")
    record = Record(**{name: _checked(value, HINTS[name], f"{where}: {name}") for name, value in row.items()})
    if record.seconds <= 0 or record.rows < 1:
        raise ValueError(f"{where}: seconds and rows must be above 0, got {record.seconds} and {record.rows}")
    return record


def _checked(value: Any, hint: Any, where: str) -> Any:
    """The value, checked against its type. JSON keys are text; those that must be integers are converted."""
    if get_origin(hint) is dict:
        key_type, value_type = get_args(hint)
        if not isinstance(value, dict):
            raise _wrong(value, hint, where)
        return {
            _key(key, key_type, where): item if value_type is Any else _checked(item, value_type, f"{where}.{key}")
            for key, item in value.items()
        }
    if get_origin(hint) is UnionType and isinstance(value, dict):
        return _checked(value, next((part for part in get_args(hint) if get_origin(part) is dict), NoneType), where)
    allowed = get_args(hint) or (hint,)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if (float in allowed and number and math.isfinite(value)) or type(value) in set(allowed) - {float}:
        return value
    raise _wrong(value, hint, where)


def _key(key: str, key_type: type, where: str) -> str | int:
    if key_type is str:
        return key
    if not key.isdecimal() or len(key) > DIGITS:
        raise invalid(f"{where}: a key", "a count", key)
    return int(key)


def _wrong(value: Any, hint: Any, where: str) -> ValueError:
    return invalid(where, str(hint) if get_args(hint) else hint.__name__, value)
