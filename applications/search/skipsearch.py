"""Search for the sub-layers to leave out: Bayesian optimisation of tokens per second, one boolean per sub-layer.

Trials are stored in a journal file as they end, so that an interrupted search can go on. Slow ones are pruned. Knows no
model and no clock: `measure` is an argument. Needs optuna (extra `search`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lade.files.regularfile import MEBIBYTE, AbsentFileError, naming, read_bytes
from lade.target.skipset import SkipSet

if TYPE_CHECKING:
    from optuna import Study, Trial

NAME = "skip-search"
FIELD, LARGEST_FILE = b'"op_code"', 256 * MEBIBYTE  # of each line of a journal; of the file
FINALISTS = 5  # measured again at the end, in turn: the best of many trials is biased upwards
KEPT = 75.0  # per cent of the trials that are not pruned: other load on the machine makes good ones look bad
UNPRUNED = 10  # first trials, which run to the end
SHARES = (1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 5 / 8)  # of the sub-layers, left out by the first trials
FREE = 1e-4  # nats per token below which leaving out a sub-layer changes nothing

SubLayer = tuple[str, int]  # "attention" or "mlp", decoder layer

Measure = Callable[[SkipSet, int], tuple[int, float]]
"""New tokens and seconds of one run on the prompt of this index."""

Progress = Callable[[int, int], object]
"""Called with the trials done and their total."""


@dataclass(frozen=True, slots=True)
class SkipOutcome:
    """The result of a search.

    Attributes:
        best: the fastest of the finalists, measured again.
        speed: its tokens per second.
        nothing: tokens per second with nothing left out, measured with the finalists.
        trials: number of trials, and of those that were not pruned.
    """

    best: SkipSet
    speed: float
    nothing: float
    trials: tuple[int, int]


def require_optuna() -> None:
    """ValueError if the extra is not installed."""
    try:
        import optuna  # noqa: F401 - an optional extra
    except ImportError as error:
        raise ValueError("skip-search needs optuna; pip install 'lade-decoding[search]'") from error


def open_study(journal: Path, head: Mapping[str, Any], seed: int) -> Study:
    """The study of a journal file, or a new one.

    Args:
        head: what the measurements depend on.

    Raises:
        ValueError: the file is not a journal, or has another head.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    keep_whole_lines(journal)
    try:
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(journal)))
        study = optuna.create_study(
            storage=storage,
            study_name=NAME,
            load_if_exists=True,
            direction="maximize",
            pruner=optuna.pruners.PercentilePruner(KEPT, n_startup_trials=UNPRUNED),
        )
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{journal}: is not the journal of a search ({error})") from error
    if not study.user_attrs:
        for name, value in head.items():
            study.set_user_attr(name, value)
    differs = [name for name, value in head.items() if study.user_attrs.get(name) != value]
    if differs:
        found = study.user_attrs.get(differs[0])
        raise ValueError(f"{journal}: holds trials with {differs[0]} {found!r}, not {head[differs[0]]!r}")
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
    return study


def keep_whole_lines(journal: Path) -> None:
    """Cut off an incomplete last line, left by a killed process: optuna would append to it. ValueError as above."""
    try:
        with naming(journal):
            content = read_bytes(journal, LARGEST_FILE)
    except AbsentFileError:
        return
    if content and FIELD not in content.partition(b"\n")[0]:
        raise ValueError(f"{journal}: is not the journal of a search")
    if not content.endswith(b"\n"):
        os.truncate(journal, content.rfind(b"\n") + 1)


def search(
    study: Study,
    sub_layers: Sequence[SubLayer],
    prompts: int,
    measure: Measure,
    trials: int,
    start: Sequence[SkipSet],
    progress: Progress,
) -> SkipOutcome:
    """Continue a study until it has a number of trials, then measure the finalists.

    Args:
        sub_layers: which may be left out.
        prompts: number of prompts to measure on.
        trials: number of trials, earlier ones included.
        start: sets to try first, if the study is new.
    """
    if not study.trials:
        for layers_out in start:
            study.enqueue_trial(_parameters(layers_out, sub_layers))
    done = len(_ended(study))
    progress(done, trials)
    while done < trials:
        study.optimize(lambda trial: _speed(trial, sub_layers, prompts, measure), n_trials=1)
        done += 1
        progress(done, trials)
    return _finish(study, prompts, measure)


def first_sets(effects: Mapping[SubLayer, float]) -> list[SkipSet]:
    """Sets to start from: nothing, then growing sets of the sub-layers with the least effect.

    Args:
        effects: sub-layer -> nats per token by which leaving it out changes the model (`effects.effects`).
    """
    ranked = sorted(effects, key=lambda key: (effects[key], key))
    free = sum(effect < FREE for effect in effects.values())
    counts = sorted({0, free, *(round(share * len(ranked)) for share in SHARES)})
    return [_set(ranked[:count]) for count in counts]


def _set(sub_layers: Sequence[SubLayer]) -> SkipSet:
    attention, mlp = (tuple(sorted(layer for kind, layer in sub_layers if kind == own)) for own in ("attention", "mlp"))
    return SkipSet(attention, mlp)


def _parameters(layers_out: SkipSet, sub_layers: Sequence[SubLayer]) -> dict[str, bool]:
    return {f"{kind}.{layer}": layer in getattr(layers_out, kind) for kind, layer in sub_layers}


def _set_of(parameters: Mapping[str, Any]) -> SkipSet:
    chosen = (name.split(".") for name, value in parameters.items() if value)
    return _set([(kind, int(layer)) for kind, layer in chosen])


def _speed(trial: Trial, sub_layers: Sequence[SubLayer], prompts: int, measure: Measure) -> float:
    """Tokens per second over all prompts; pruned if it is among the slowest trials so far."""
    import optuna

    parameters = {name: trial.suggest_categorical(name, [False, True]) for name in _parameters(SkipSet(), sub_layers)}
    layers_out, tokens, seconds = _set_of(parameters), 0, 0.0
    for prompt in range(prompts):
        more = measure(layers_out, prompt)
        tokens, seconds = tokens + more[0], seconds + more[1]
        trial.report(tokens / seconds, prompt)
        if prompt < prompts - 1 and trial.should_prune():
            raise optuna.TrialPruned
    return tokens / seconds


def _ended(study: Study) -> list[Any]:
    return [trial for trial in study.trials if trial.state.is_finished()]


def _finish(study: Study, prompts: int, measure: Measure) -> SkipOutcome:
    ended = _ended(study)
    whole = [trial for trial in ended if trial.state.name == "COMPLETE"]
    ranked = sorted(whole, key=lambda trial: -trial.value)
    finalists = list(dict.fromkeys(_set_of(trial.params) for trial in ranked))[:FINALISTS]
    speeds = _rates(list(dict.fromkeys([*finalists, SkipSet()])), prompts, measure)
    best = max(speeds, key=lambda layers_out: speeds[layers_out])
    return SkipOutcome(best, speeds[best], speeds[SkipSet()], (len(ended), len(whole)))


def _rates(sets: Sequence[SkipSet], prompts: int, measure: Measure) -> dict[SkipSet, float]:
    """Tokens per second of each over all prompts. The sets take turns, so that other load affects all alike."""
    tokens, seconds = dict.fromkeys(sets, 0), dict.fromkeys(sets, 0.0)
    for prompt in range(prompts):
        for layers_out in sets:
            more = measure(layers_out, prompt)
            tokens[layers_out] += more[0]
            seconds[layers_out] += more[1]
    return {layers_out: tokens[layers_out] / seconds[layers_out] for layers_out in sets}
