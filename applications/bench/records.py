"""One run of one method on one turn of one prompt, as a line of the results file; and the strict way back.

Knows no statistics, no model and no method.
"""

import json
import math
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from lade.base.shown import shown
from lade.files.jsonobject import DIGITS, json_object, read_lines
from lade.files.regularfile import MEBIBYTE

RESULTS = "results.jsonl"  # in the folder of a run
MOST = 1024 * MEBIBYTE  # of a results file: about a million records


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one method did with one prompt.

    Times are of the call of `generate` that decoded the prompt. Prompts of a batch share that call, so each of their
    records holds the whole call's times, forwards and memory; `share` is the record's part of the seconds. Tokens,
    steps, scores and what became of drafts are the prompt's own.

    Attributes:
        method: its label on the command line, options included.
        task: the suite's or the prompt file's name.
        turn: 0 for a conversation's first question. Later ones follow plain decoding's answers, for every method.
        repeat: 0 for the first run of the prompt.
        seed: of the global generator before the call.
        temperature: 0 for greedy decoding.
        batch: prompts side by side, as asked for; `rows`: as it was, fewer in the last batch of a task.
        context: prompt tokens that every prompt was brought to; None where prompts keep their own length.
        prompt_tokens: of the row, padding left out.
        new_tokens: up to the row's end, EOS included.
        steps: forwards after the prefill in which the row took part.
        tokens_per_step: new_tokens / steps; None where there was no step.
        mean_forward_tokens: tokens of a row in a forward after the prefill, padding included; None where none was.
        seconds: the whole call.
        prefill_seconds: up to the end of the first forward: the time to the first token.
        model_seconds: inside the forwards after it; on CUDA the device's time.
        host_seconds: the rest.
        draft_seconds: the part of it that chose what to draft, where the method tells.
        compared_with: the method whose text and speed those of this one are compared with: plain decoding, unless
            another distribution is decoded.
        identical_to_plain: whether the new tokens are its of the same trial.
        digest: of the new tokens, so that texts of two runs can be compared; empty where the record does not tell.
        parting: greedy texts that differ: `index` in the row's text, both `tokens`, and the logits there: the top-2
            `gap`, one `ulp`, the gap in `ulps`, the widest `allowed` gap, and whether that makes it `explained`.
        proposed: by source of drafts: nodes sent through the model.
        verified: those whose parent was accepted, so that the model's choice was compared with them.
        accepted: those that it chose.
        verified_by_depth: distance from the root -> steps that compared the model's choice there with drafted tokens.
        accepted_by_depth: those of them where it was one of these tokens.
        accepted_lengths: tokens that a step emitted -> how many steps; empty where the method does not tell.
        widths: tokens of a row in a forward after the prefill, padding included -> how many forwards.
        decisions: why forwards had their widths -> how often.
        repeated_4grams: share of the new tokens' 4-grams that stood there before; 0 where there is none.
        text_measures: of the new tokens, by name (`lade.applications.text_measures`), as far as they are long enough.
        log_likelihood: mean over the new tokens under the reference model, in nats; None where nobody asked one.
        score: whether the answer is right; None where the task cannot tell, or was not allowed to run it.
        peak_memory_bytes: most bytes allocated on the device during the call; None on a CPU.
        fallback: why the method decoded plainly.
        warm_seconds: what the warm table cost once, where the method used it.
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
        """As one reader of the text sees it."""
        return self.new_tokens / self.seconds

    @property
    def share(self) -> float:
        """Seconds of the call that are this row's; over all records they sum to the time that passed."""
        return self.seconds / self.rows


HINTS = get_type_hints(Record)
NEEDED = tuple(f.name for f in fields(Record) if f.default is MISSING and f.default_factory is MISSING)


def as_line(record: Record) -> str:
    return json.dumps(asdict(record)) + "\n"


def read_records(path: Path) -> list[Record]:
    """Every record of a results file. ValueError names the file, the line and the field that cannot be used."""
    return [read_record(line, f"{path}:{number}") for number, line in read_lines(path, MOST)]


def read_record(line: str, where: str) -> Record:
    """One line. ValueError begins with `where`."""
    row = json_object(line, where)
    unknown = sorted(set(row) - set(HINTS))
    if unknown:
        raise ValueError(f"{where}: unknown field {shown(unknown[0])}: known are {', '.join(HINTS)}")
    missing = [name for name in NEEDED if name not in row]
    if missing:
        raise ValueError(f"{where}: the field {missing[0]!r} is missing")
    record = Record(**{name: _checked(value, HINTS[name], f"{where}: {name}") for name, value in row.items()})
    if record.seconds <= 0 or record.rows < 1:
        raise ValueError(f"{where}: seconds={record.seconds}, rows={record.rows}: both must be above 0")
    return record


def _checked(value: Any, hint: Any, where: str) -> Any:
    """The value as this type; JSON's own keys are text, so numbers among them are read back."""
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
        raise ValueError(f"{where}: the key {shown(key)} is not a count")
    return int(key)


def _wrong(value: Any, hint: Any, where: str) -> ValueError:
    return ValueError(f"{where}={shown(value)}: {hint if get_args(hint) else hint.__name__} is needed")
