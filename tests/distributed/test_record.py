"""What ranks send: what goes in comes out, within the integers that there are."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lade.core.tree import Draft, TreeBuilder
from lade.distributed import packing
from lade.distributed.checksum import of_drafts
from lade.distributed.record import LEAST, Layout, Record, pack, unpack


@st.composite
def records(draw: st.DrawFn) -> tuple[Record, Layout, int]:
    rows, apart = draw(st.integers(1, 70)), draw(st.booleans())
    vocabulary, top = draw(st.sampled_from([2, 64, 49152, 151_936, 262_144, 1 << 20])), draw(st.integers(0, 8))
    queries = draw(st.integers(0, 30))
    layout = Layout.of(rows, 48, vocabulary, min(top, vocabulary), apart)
    token = st.integers(0, vocabulary - 1)
    entries = layout.entries(queries)
    greedy = draw(st.lists(token, min_size=queries, max_size=queries))
    choices = draw(st.lists(token | st.just(-1), min_size=queries, max_size=queries)) if apart else greedy
    tops = st.lists(token, min_size=top, max_size=top)
    masses = st.lists(st.floats(0, 1), min_size=top, max_size=top)
    times = draw(st.lists(st.floats(0, 1e6, width=32), max_size=3))
    record = Record(
        draw(st.integers(0, (1 << 32) - 1)),
        draw(st.lists(st.booleans(), min_size=rows, max_size=rows)),
        times,
        choices,
        greedy,
        [draw(tops) for _ in range(queries)],
        [draw(masses) for _ in range(queries)],
    )
    return record, layout, entries


@settings(max_examples=40)
@given(records())
def test_records(made: tuple[Record, Layout, int]) -> None:
    record, layout, entries = made
    buffer = pack(record, layout, entries)
    assert len(buffer) == layout.total
    found = unpack(buffer, layout, entries)
    assert (found.checksum, found.flags, found.choices) == (record.checksum, record.flags, record.choices)
    assert found.greedy == record.greedy
    assert found.times[: len(record.times)] == record.times
    kept = layout.entries(len(record.choices))
    assert kept == entries
    assert found.tokens == [tokens[:kept] for tokens in record.tokens]
    if record.choices and kept:
        sent = np.array([each[:kept] for each in record.probabilities])
        dropped = max(0, layout.token_bits - 17)
        assert np.allclose(found.probabilities, sent, rtol=2.0 ** (dropped - 10), atol=2.0 ** (dropped - 24))
        assert (np.array(found.probabilities) > 0).all()


def test_a_record_has_8_kilobytes_at_most_where_choices_find_room() -> None:
    assert Layout.of(4, 48, 49152, 8, apart=True).total <= LEAST
    crowded = Layout.of(16, 128, 49152, 8, apart=True)
    assert crowded.total >= 16 * 128 * 2
    assert crowded.entries(16 * 128) == 0
    assert crowded.entries(16 * 128 // 4) > 0


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    builder = TreeBuilder(draw(st.integers(0, 1 << 18)))
    for _ in range(draw(st.integers(0, 20))):
        parent, token = draw(st.integers(0, len(builder.tokens) - 1)), draw(st.integers(0, 1 << 18))
        node = builder.add(parent, token, draw(st.sampled_from(packing.SOURCES)))
        if draw(st.booleans()):
            builder.queries.add(node)
    return builder.build()


@settings(max_examples=40)
@given(st.lists(drafts(), max_size=4), st.integers(0, (1 << 32) - 1))
def test_drafts(trees: list[Draft], checksum: int) -> None:
    total = packing.size(4, 21)
    found, theirs = packing.unpack(packing.pack(trees, checksum, total))
    assert found == trees
    assert theirs == checksum
    assert of_drafts(found) == of_drafts(trees)


@settings(max_examples=40)
@given(drafts(), st.data())
def test_checksums_of_drafts_differ(draft: Draft, data: st.DataObject) -> None:
    node = data.draw(st.integers(0, len(draft) - 1))
    tokens = list(draft.tokens)
    tokens[node] += 1
    other = Draft(tokens, draft.parents, draft.depths, draft.queries, draft.sources)
    assert of_drafts([other]) != of_drafts([draft])
