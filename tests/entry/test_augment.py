"""Switching on and off: one patch point, put back as it was, whatever happens in between."""

import contextlib
import contextvars
import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from families import BRANCHABLE
from peft import LoraConfig, get_peft_model
from tiny import tiny_model, words
from transformers import GenerationMixin, PreTrainedModel

import lade
from lade.config.default import default_config
from lade.entry import augment
from lade.memory.pools import shared_pool

BY_NAME = {family.name: family for family in BRANCHABLE}
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12}
CONFIG = lade.LookaheadConfig(mode="lookahead", ngram=3, window=4, guesses=4)


def patch_point() -> Callable[..., Any]:
    return GenerationMixin.__dict__["_sample"]


ORIGINAL = patch_point()
LEFT = {name: GenerationMixin.__dict__[name] for name in ("_beam_search", "_assisted_decoding")}  # to transformers


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test finds a patch, and none leaves one."""
    monkeypatch.delenv("USE_LADE", raising=False)
    assert patch_point() is ORIGINAL
    yield
    left = patch_point()
    lade.restore_all()
    GenerationMixin._sample = ORIGINAL
    assert left is ORIGINAL
    assert {name: GenerationMixin.__dict__[name] for name in LEFT} == LEFT
    assert augment._users == 0


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model(BY_NAME["llama"], "sdpa")


def looks_ahead(model: Any) -> bool:
    """Whether `model.generate` decodes with lookahead here and now."""
    before = len(lade.log_history())
    model.generate(**words(5), **GREEDY)
    calls = lade.log_history()[before:]
    assert len(calls) <= 1
    assert all(stats.fallback is None and stats.new_tokens == 12 for stats in calls)
    return bool(calls)


# augment_all and restore_all


@pytest.mark.compat
def test_on_and_off(model: PreTrainedModel) -> None:
    assert not looks_ahead(model)
    lade.augment_all()
    assert looks_ahead(model)
    lade.restore_all()
    assert patch_point() is ORIGINAL
    assert not looks_ahead(model)


def test_twice_is_once(model: PreTrainedModel) -> None:
    lade.augment_all()
    patch = patch_point()
    lade.augment_all()
    assert patch_point() is patch
    assert looks_ahead(model)
    lade.restore_all()
    assert patch_point() is ORIGINAL
    lade.restore_all()
    assert patch_point() is ORIGINAL


def test_off_without_on() -> None:
    lade.restore_all()
    assert patch_point() is ORIGINAL
    assert augment._users == 0


def test_methods_with_statistics_of_their_own_are_counted_once(model: PreTrainedModel) -> None:
    lade.augment_all()
    before = len(lade.log_history())
    lade.prompt_lookup_generate(model, words(5)["input_ids"], **GREEDY)
    assert [stats.fallback for stats in lade.log_history()[before:]] == [None]
    lade.restore_all()


def test_the_patch_looks_like_the_original() -> None:
    """`generate` inspects its signature."""
    lade.augment_all()
    assert patch_point().__wrapped__ is ORIGINAL
    assert patch_point().__name__ == "_sample"
    lade.restore_all()


@pytest.mark.parametrize(("value", "on"), [(None, True), ("1", True), ("0", False)])
def test_environment(value: str | None, on: bool, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read when a call begins, not when the patch is made; without the patch it means nothing."""
    if value is not None:
        monkeypatch.setenv("USE_LADE", value)
    assert not looks_ahead(model)
    lade.augment_all()
    assert looks_ahead(model) is on
    monkeypatch.setenv("USE_LADE", "0")
    assert not looks_ahead(model)
    monkeypatch.setenv("USE_LADE", "1")
    assert looks_ahead(model)
    lade.restore_all()
    assert not looks_ahead(model)


def test_settings_are_read_call_by_call(model: PreTrainedModel, default_settings: None) -> None:
    lade.augment_all()
    steps = set()
    for window in (1, 9):
        lade.config_lade(MODE="lookahead", LEVEL=3, WINDOW_SIZE=window)
        assert looks_ahead(model)
        steps.add(lade.last_stats().forward_tokens)
    lade.restore_all()
    assert len(steps) == 2


def test_settings_made_before_outlast_switching_on_and_go_with_switching_off(
    model: PreTrainedModel, default_settings: None
) -> None:
    given = lade.config_lade(MODE="lookahead", LEVEL=3, WINDOW_SIZE=2)
    lade.augment_all()
    lade.augment_all()
    assert default_config() == given
    lade.restore_all()
    assert default_config() == lade.LookaheadConfig()
    lade.config_lade(BUDGET=5)
    lade.restore_all()  # nothing to switch off, settings to give back
    assert default_config() == lade.LookaheadConfig()


def test_an_open_scope_keeps_its_settings_and_a_pool_what_it_learned(
    model: PreTrainedModel, default_settings: None
) -> None:
    lade.config_lade(MODE="lookahead", LEVEL=3, WINDOW_SIZE=2)
    pool = shared_pool(model, "me")
    lade.augment_all()
    with lade.lookahead(model):
        before = forward_tokens(model)
        lade.restore_all()
        assert forward_tokens(model) == before
        lade.config_lade(BUDGET=7)
    assert default_config().budget == 7
    assert shared_pool(model, "me") is pool
    lade.drop_pools(model)


# Scopes


@pytest.mark.compat
def test_scope(model: PreTrainedModel) -> None:
    with lade.lookahead(model, CONFIG):
        assert looks_ahead(model)
    assert patch_point() is ORIGINAL
    assert not looks_ahead(model)


def test_scope_is_for_its_model(model: PreTrainedModel) -> None:
    other = tiny_model(BY_NAME["qwen2"], "sdpa")
    with lade.lookahead(model, CONFIG):
        assert not looks_ahead(other)
        assert looks_ahead(model)


def test_scope_knows_no_environment(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_LADE", "0")
    with lade.lookahead(model, CONFIG):
        assert looks_ahead(model)


def forward_tokens(model: PreTrainedModel) -> int:
    assert looks_ahead(model)
    return lade.last_stats().forward_tokens


def test_the_innermost_scope_counts(model: PreTrainedModel, default_settings: None) -> None:
    small, large = (
        lade.LookaheadConfig(mode="lookahead", ngram=2, window=1),
        lade.LookaheadConfig(mode="lookahead", ngram=4, window=9),
    )
    with lade.lookahead(model, small):
        outer = forward_tokens(model)
        with lade.lookahead(model, large):
            assert forward_tokens(model) != outer
        assert forward_tokens(model) == outer
    assert patch_point() is ORIGINAL


def test_scope_inside_augment(model: PreTrainedModel) -> None:
    lade.augment_all()
    with lade.lookahead(model, CONFIG):
        lade.restore_all()
        assert looks_ahead(model)
    assert patch_point() is ORIGINAL


def test_augment_inside_scope(model: PreTrainedModel) -> None:
    other = tiny_model(BY_NAME["qwen2"], "sdpa")
    with lade.lookahead(model, CONFIG):
        lade.augment_all()
        assert looks_ahead(other)
    assert looks_ahead(model)
    lade.restore_all()


def test_scope_without_settings_takes_the_default(model: PreTrainedModel, default_settings: None) -> None:
    lade.config_lade(MODE="lookahead", LEVEL=2, WINDOW_SIZE=1)
    with lade.lookahead(model):
        tokens = forward_tokens(model)
    with lade.lookahead(model, lade.LookaheadConfig(mode="lookahead", ngram=2, window=1)):
        assert forward_tokens(model) == tokens


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_scope_of_a_wrapped_model() -> None:
    """PEFT's wrapper is entered, whichever of the two is named."""
    base = copy.deepcopy(tiny_model(BY_NAME["mistral"], "sdpa"))
    wrapped = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"])).eval()
    with lade.lookahead(wrapped, CONFIG):
        assert looks_ahead(wrapped)
    with lade.lookahead(base, CONFIG):
        assert looks_ahead(wrapped)
    assert not looks_ahead(wrapped)


def held(model: PreTrainedModel) -> Iterator[bool]:
    """A generator that decodes inside a scope, as the response of a server does."""
    with lade.lookahead(model, CONFIG):
        while True:
            yield looks_ahead(model)


def test_scopes_that_end_in_the_order_of_their_beginning(model: PreTrainedModel) -> None:
    other = tiny_model(BY_NAME["qwen2"], "sdpa")
    first, second = held(model), held(other)
    assert next(first)
    assert next(second)
    first.close()
    assert not looks_ahead(model)
    assert next(second)
    second.close()
    assert not looks_ahead(other)
    assert augment._scopes.get() == ()


def test_a_scope_that_ends_in_another_context(model: PreTrainedModel) -> None:
    """As where a framework runs each step of a generator in a copy of the request's context."""
    begins, ends = contextvars.copy_context(), contextvars.copy_context()
    scope = held(model)
    assert begins.run(next, scope)
    copied = begins.copy()
    ends.run(scope.close)
    lade.augment_all()  # the patch is there for others
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("USE_LADE", "0")
        assert not begins.run(looks_ahead, model)
        assert not copied.run(looks_ahead, model)
    lade.restore_all()


# Exceptions


@pytest.mark.parametrize("augmented_too", [True, False])
def test_an_exception_leaves_nothing(model: PreTrainedModel, augmented_too: bool) -> None:
    with contextlib.ExitStack() as stack:
        if augmented_too:
            lade.augment_all()
            stack.callback(lade.restore_all)
        with pytest.raises(KeyError), lade.lookahead(model, CONFIG), lade.lookahead(model, CONFIG):
            raise KeyError
        assert looks_ahead(model) is augmented_too
    assert patch_point() is ORIGINAL


def test_an_exception_inside_generate(model: PreTrainedModel) -> None:
    def fails(*args: Any) -> None:
        raise KeyError("from a user's criterion")

    with pytest.raises(KeyError), lade.lookahead(model, CONFIG):
        model.generate(**words(5), **GREEDY, stopping_criteria=[fails])
    assert patch_point() is ORIGINAL
    assert not looks_ahead(model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, CONFIG), "model must be a transformers model that can generate, got None"),
        (("gpt2", CONFIG), "model must be a transformers model that can generate, got 'gpt2'"),
        (
            (tiny_model(BY_NAME["llama"], "sdpa"), {"window": 7}),
            "config must be a lade.LookaheadConfig or None, got {'window': 7}",
        ),
        ((tiny_model(BY_NAME["llama"], "sdpa"), 7), "config must be a lade.LookaheadConfig or None, got 7"),
    ],
)
def test_bad_scopes_are_refused_before_anything_is_patched(arguments: tuple[Any, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message), lade.lookahead(*arguments):
        pytest.fail("the scope was entered")
    assert patch_point() is ORIGINAL
    assert augment._scopes.get() == ()


# Other libraries


def someone_else_patches(calls: list[str]) -> Callable[..., Any]:
    below = patch_point()

    def _sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append("theirs")
        return below(self, *args, **kwargs)

    GenerationMixin._sample = _sample
    return _sample


def test_a_patch_below_ours_comes_back(model: PreTrainedModel) -> None:
    calls: list[str] = []
    theirs = someone_else_patches(calls)
    lade.augment_all()
    assert looks_ahead(model)
    assert calls == []
    lade.restore_all()
    assert patch_point() is theirs
    GenerationMixin._sample = ORIGINAL


def test_a_patch_on_top_of_ours_stays(model: PreTrainedModel) -> None:
    """It is not ours to remove; what it calls, our patch, has become a pass-through."""
    lade.augment_all()
    calls: list[str] = []
    theirs = someone_else_patches(calls)
    assert looks_ahead(model)
    lade.restore_all()
    assert patch_point() is theirs
    assert not looks_ahead(model)
    assert calls == ["theirs"] * 2
    GenerationMixin._sample = ORIGINAL


@pytest.mark.parametrize("stays", [True, False])
def test_on_again_after_a_patch_on_top(stays: bool, model: PreTrainedModel) -> None:
    """Whether the other patch is still there or was taken off again: one lookahead, one warning, never two."""
    lade.augment_all()
    ours = patch_point()
    someone_else_patches([])
    lade.restore_all()
    if not stays:
        GenerationMixin._sample = ours  # as the other library puts back what it found
    lade.augment_all()
    assert looks_ahead(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.generate(**words(5), **GREEDY, use_cache=False)
    assert [warning.category for warning in caught].count(lade.FallbackWarning) == 1
    lade.restore_all()
    assert not looks_ahead(model)
    GenerationMixin._sample = ORIGINAL


# Threads


def in_threads(*works: Callable[[], None]) -> None:
    """Run at once; an exception in any of them is raised here."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        start.wait()
        try:
            work()
        except BaseException as failure:  # noqa: BLE001 - whatever it is, the test must see it
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def last_call(model: PreTrainedModel) -> Any:
    """The statistics of one more call in this thread, if it left any."""
    before = lade.last_stats()
    model.generate(**words(5), **GREEDY)
    return None if lade.last_stats() is before else lade.last_stats()


def test_scopes_belong_to_their_thread(model: PreTrainedModel) -> None:
    """Threads open and close scopes while others decode plainly: each gets what it asked for, and nothing is left."""
    expected = model.generate(**words(5), **GREEDY).tolist()

    def scoped() -> None:
        for _ in range(10):
            with lade.lookahead(model, CONFIG):
                assert last_call(model) is not None

    def plainly() -> None:
        for _ in range(15):
            assert last_call(model) is None
            assert model.generate(**words(5), **GREEDY).tolist() == expected

    in_threads(scoped, plainly, scoped)
    assert patch_point() is ORIGINAL


def test_switching_in_threads() -> None:
    """Scopes and switches in any order end with the original in place."""
    model = tiny_model(BY_NAME["llama"], "sdpa")

    def switch() -> None:
        for _ in range(300):
            lade.augment_all()
            lade.restore_all()

    def scopes() -> None:
        for _ in range(300):
            with lade.lookahead(model, CONFIG):
                assert patch_point() is not ORIGINAL

    in_threads(switch, scopes, switch, scopes)
    assert patch_point() is ORIGINAL
