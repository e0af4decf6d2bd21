"""Sizes of programs of products, for many shapes and devices."""

from hypothesis import given
from hypothesis import strategies as st

from lade.kernels.sizes import (
    GATED,
    MOST_SPLITS,
    NARROW,
    OF_FEW,
    OF_MANY,
    TILE,
    TOGETHER,
    Sizes,
    program_tokens,
    sizes_of,
)

H100 = {"processors": 132, "shared": 232448}
SMALLEST = 99 << 10  # bytes of a program's memory on devices of compute capability 8.6 and 8.9


@given(
    tokens=st.integers(1, 64), lines=st.integers(1, 200_000), size=st.integers(1, 2000).map(lambda i: 16 * i),
    processors=st.integers(8, 200), shared=st.integers(SMALLEST, 232448), pair=st.booleans(),
)  # fmt: skip
def test_programs_fit_and_run_at_once(tokens, lines, size, processors, shared, pair):
    found = sizes_of(tokens, lines, size, processors, shared, pair)
    assert found.shared(tokens, 1 + pair) <= shared
    assert found.split in (1, 2, MOST_SPLITS)
    if found.split > 1:
        assert -(-lines // TILE) * found.split <= TOGETHER * processors, "parts wait for none"
        assert found.split * 256 <= size
        assert program_tokens(tokens) == 16, "not pairs, and few tokens"


def test_the_fastest_ones_on_an_h100_at_a_7b_shape():
    """As measured there: q, k and v together, the output of attention, gates, down, and the head."""
    shapes = (3 * 4096, 4096), (4096, 4096), (4096, 11008), (49152, 4096)
    few = [sizes_of(tokens, *shape, **H100) for shape in shapes for tokens in (1, 16)]
    split = Sizes(TILE, 128, 4, swap=True, split=4)
    assert few == [OF_FEW[0], OF_FEW[0], split, split, split, split, OF_FEW[0], OF_FEW[0]]
    many = [sizes_of(tokens, *shape, **H100) for shape in shapes for tokens in (17, 64)]
    assert many == [OF_MANY[0], OF_MANY[0], NARROW[0], NARROW[0], NARROW[0], NARROW[0], OF_MANY[0], OF_MANY[0]]
    assert {sizes_of(tokens, 11008, 4096, **H100, pair=True) for tokens in (1, 16, 17, 64)} == {GATED[0]}
