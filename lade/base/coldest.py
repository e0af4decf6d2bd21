"""The temperatures that sampling takes."""

import math

COLDEST = 1e-5  # logits divided by less may overflow; this one chooses the likeliest token already
ALLOWED = f"0, or a number of at least {COLDEST:g}"


def is_temperature(value: float) -> bool:
    """Whether it is one to sample at, or 0, for greedy decoding."""
    return value == 0 or COLDEST <= value < math.inf
