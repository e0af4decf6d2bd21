"""The contrastive rule and its settings: against the formula, at its edges, and what is refused."""

import math
from typing import Any

import pytest
import torch
from families import BY_NAME
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_model
from transformers import PreTrainedModel

import lade
from lade.target.contrast import IMPLAUSIBLE, check_contrast, contrasted

LOGIT = st.floats(-30, 30, width=32)


def tiny(name: str = "llama") -> PreTrainedModel:
    return tiny_model(BY_NAME[name], "sdpa")


def contrast(**fields: Any) -> lade.Contrast:
    return lade.Contrast(tiny(), **fields)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight", -0.1),
        ("weight", math.inf),
        ("weight", math.nan),
        ("weight", "1"),
        ("weight", 1e7),
        ("weight", True),
        ("temperature", 0),
        ("temperature", -1.0),
        ("temperature", 1e-320),
        ("temperature", math.inf),
        ("alpha", -0.1),
        ("alpha", 1.1),
        ("alpha", None),
        ("vocabulary", 0),
        ("vocabulary", 1.5),
    ],
)
def test_fields_are_checked(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be .*, got "):
        contrast(**{field: value})


@pytest.mark.parametrize("amateur", [None, "gpt2", torch.nn.Linear(2, 2)])
def test_the_amateur_is_a_model(amateur: object) -> None:
    with pytest.raises(ValueError, match=r"^amateur must be a transformers model that can generate, got "):
        lade.Contrast(amateur)


@pytest.mark.parametrize("wrong", [0, "amateur", 1.0])
def test_no_contrast_at_all(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"contrast must be a lade\.Contrast or None, got "):
        check_contrast(wrong, tiny())


# The rule


def by_hand(expert: list[float], amateur: list[float], weight: float, temperature: float, alpha: float) -> list[float]:
    def logs(values: list[float]) -> list[float]:
        top = max(values)
        total = top + math.log(sum(math.exp(value - top) for value in values))
        return [value - total for value in values]

    p, q = logs(expert), logs([value / temperature for value in amateur])
    bound = max(p) + (math.log(alpha) if alpha else -math.inf)
    return [one - weight * other if one >= bound else one + IMPLAUSIBLE for one, other in zip(p, q, strict=True)]


@given(
    st.lists(st.tuples(LOGIT, LOGIT), min_size=1, max_size=12),
    st.floats(0, 4),
    st.floats(0.1, 4),
    st.one_of(st.just(0.0), st.floats(1e-6, 1)),
)
def test_formula(pairs: list[tuple[float, float]], weight: float, temperature: float, alpha: float) -> None:
    expert, amateur = ([pair[side] for pair in pairs] for side in (0, 1))
    asked = contrast(weight=weight, temperature=temperature, alpha=alpha)
    found = contrasted(*(torch.tensor(each, dtype=torch.float64) for each in (expert, amateur)), asked)
    expected = by_hand(expert, amateur, weight, temperature, alpha)
    unsure = {index for index, value in enumerate(expert) if abs(value - max(expert) - _log(alpha)) < 1e-9}
    for index, (value, wanted) in enumerate(zip(found.tolist(), expected, strict=True)):
        assert index in unsure or value == pytest.approx(wanted, abs=1e-6)
    assert int(found.argmax()) in {
        index for index, value in enumerate(expert) if value >= max(expert) + _log(alpha) - 1e-9
    }


def _log(alpha: float) -> float:
    return math.log(alpha) if alpha else -math.inf


def test_worked_example() -> None:
    """p = .6 .3 .06 .04, so .06 is the bound of plausibility at alpha 0.1; q = .9 .05 .03 .02."""
    p, q = torch.tensor([0.6, 0.3, 0.06001, 0.03999]).log(), torch.tensor([0.9, 0.05, 0.03, 0.02]).log()
    scores = contrasted(p, q, contrast())
    assert scores[:3].exp().tolist() == pytest.approx([2 / 3, 6, 2.0003], rel=1e-4)
    assert scores[3] < -1000
    assert scores.softmax(-1)[3] == 0


def test_half_precision_is_combined_in_float32() -> None:
    logits = torch.randn(3, 5, 64).bfloat16()
    scores = contrasted(logits, logits, contrast(weight=0, alpha=0))
    assert scores.dtype is torch.float32
    assert scores.shape == (3, 5, 64)
    torch.testing.assert_close(scores, logits.float().log_softmax(-1))


def test_what_the_amateur_rules_out() -> None:
    """Finite, and better than anything that it does not rule out; nothing at all at weight 0."""
    p, q = torch.zeros(3), torch.tensor([0.0, -math.inf, 0.0])
    scores = contrasted(p, q, contrast())
    assert scores.isfinite().all()
    assert scores.argmax() == 1
    assert contrasted(p, q, contrast(weight=0.0)).tolist() == pytest.approx([-math.log(3)] * 3)


def test_alpha_one_leaves_the_likeliest() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0])
    scores = contrasted(logits, torch.tensor([-9.0, 9.0, -9.0]), contrast(alpha=1.0))
    assert scores.argsort(descending=True).tolist() == [1, 2, 0]
    assert scores.softmax(-1).tolist() == [0, 1, 0]


def test_padded_vocabularies() -> None:
    expert, amateur = torch.tensor([1.0, 2.0, 9.0]), torch.tensor([1.0, 0.0, 3.0, 7.0])
    scores = contrasted(expert, amateur, contrast(vocabulary=2, alpha=0.0))
    assert scores[2] == -math.inf
    torch.testing.assert_close(scores[:2], expert[:2].log_softmax(-1) - amateur[:2].log_softmax(-1))
