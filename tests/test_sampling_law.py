"""The engine's sampled text follows the target's distribution, whatever drafts were drawn; broken rules would show.

2,000 texts per method, seeded, from a model of five words: the first token is plain decoding's, the next two are
drafted in one tree. G-test over all texts of three tokens, wrong once in a thousand seeds.
"""

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from gtest import small_model, surprise, text_law
from test_rules import BROKEN, NoResidual
from torch import Tensor

import lade
from lade.core.proposals import Rule
from lade.drafters import multi_candidate
from lade.engine import levels
from lade.engine.method import Method

TEXTS, ROWS = 2_000, 500  # rows at once: what one costs grows with their number
BROKEN_TEXTS = 1_500  # so many show every broken rule
NEW_TOKENS = 4
PROMPT = torch.tensor([[1, 2, 3]])
TARGET = small_model(0, layers=2)
DRAFT = small_model(0, noise=0.25, layers=2)
METHODS: dict[str, Callable[[], Method]] = {
    "draft model": lambda: lade.DraftModel(DRAFT, tokens=2),
    "without replacement": lambda: lade.MultiCandidate(DRAFT, widths=(2, 2)),
    "self-speculative": lambda: lade.SelfSpeculative(((0,), (1,)), tokens=2, adapt="fixed"),
    "with replacement": lambda: lade.MultiCandidate(DRAFT, widths=(2, 2), replacement=True),
}


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """Hundreds of requests at once are many objects, none of them in a cycle."""
    gc.disable()
    yield
    gc.enable()


# These draft with certainty: which drafts come never depends on what sampling would draw.
CERTAIN = {
    "lookahead": lade.LookaheadConfig(mode="lookahead", ngram=3, window=2, guesses=2),
    "blend": lade.LookaheadConfig(mode="auto", budget=6, adapt=False),
}


def sampled(method: Method | None, texts: int, **kwargs: object) -> Tensor:
    """[texts, 3] new tokens; of the fourth one nothing is asked."""
    torch.manual_seed(1)
    parts = []
    for _ in range(0, texts, ROWS):
        rows = min(ROWS, texts)
        arguments = {"do_sample": True, "top_k": 0, "max_new_tokens": NEW_TOKENS, "num_return_sequences": rows} | kwargs
        out = lade.generate(TARGET, PROMPT, method=method, **arguments)
        parts.append(getattr(out, "sequences", out)[:, PROMPT.shape[1] : -1])
        assert lade.last_stats().fallback is None
        assert lade.last_stats().accepted_tokens > (rows / 2 if method is not None else rows / 10)
    return torch.cat(parts)


@pytest.mark.parametrize("name", METHODS)
def test_text_follows_the_targets_law(name: str) -> None:
    assert surprise(sampled(METHODS[name](), TEXTS), text_law(TARGET, PROMPT, NEW_TOKENS - 1)) < 1


@pytest.mark.slow
@pytest.mark.parametrize("name", CERTAIN)
def test_text_of_certain_drafts_follows_the_targets_law(name: str) -> None:
    assert surprise(sampled(None, TEXTS, config=CERTAIN[name]), text_law(TARGET, PROMPT, NEW_TOKENS - 1)) < 1


@pytest.mark.parametrize("name", CERTAIN)
def test_a_broken_choice_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = levels.draw_each
    monkeypatch.setattr(levels, "draw_each", lambda likely, noise: right(likely**2, noise))
    texts = sampled(None, BROKEN_TEXTS, config=CERTAIN[name])
    assert surprise(texts, text_law(TARGET, PROMPT, NEW_TOKENS - 1)) > 1


TOKEN_BY_TOKEN = {"return_dict_in_generate": True, "output_scores": True}


@pytest.mark.parametrize("name", METHODS)
def test_text_chosen_token_by_token_follows_it_too(name: str) -> None:
    texts = sampled(METHODS[name](), BROKEN_TEXTS, **TOKEN_BY_TOKEN)
    assert surprise(texts, text_law(TARGET, PROMPT, NEW_TOKENS - 1)) < 1


def test_a_broken_rule_shows_token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_candidate, "Candidates", NoResidual)
    texts = sampled(METHODS["draft model"](), BROKEN_TEXTS, **TOKEN_BY_TOKEN)
    assert surprise(texts, text_law(TARGET, PROMPT, NEW_TOKENS - 1)) > 1


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        *(("draft model", broken) for broken in BROKEN[:3]),  # with one candidate there is but one try
        *(("without replacement", broken) for broken in BROKEN),
        ("self-speculative", BROKEN[0]),
        ("with replacement", BROKEN[-1]),
    ],
)
def test_a_broken_rule_shows(name: str, broken: Callable[[bool], Rule], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rule for both kinds of drafts; by enumeration, in `test_rules`, for every way of drawing."""
    monkeypatch.setattr(multi_candidate, "Candidates", broken)
    assert surprise(sampled(METHODS[name](), BROKEN_TEXTS), text_law(TARGET, PROMPT, NEW_TOKENS - 1)) > 1
