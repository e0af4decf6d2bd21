"""What becomes of drafts, counted by source, by depth and by the length of a step."""

from lade.core.request import Verdict
from lade.core.tally import TOGETHER, Acceptance, Tally, together
from lade.core.tree import Draft, TreeBuilder


def draft() -> Draft:
    """Under the root 5: 6, 7, 8 from one source and 9, 10 from another; 11 under 6 from the other."""
    builder = TreeBuilder(5)
    builder.add_path(0, [6, 7, 8], "suffix")
    builder.add_path(0, [9, 10], "ngram")
    builder.add_path(1, [11], "ngram")
    return builder.build()


def test_a_step_is_counted_by_source_depth_and_length() -> None:
    tally = Tally()
    tally.add(draft(), Verdict(path=[0, 1, 2], tokens=[6, 7, 12]))  # 8 was drafted, 12 chosen
    tally.add(draft(), Verdict(path=[0, 4, 5], tokens=[9, 10, 3]))  # a full match: nothing was drafted behind it
    tally.add(draft(), Verdict(path=[0], tokens=[1]))
    tally.add(TreeBuilder(5).build(), Verdict(path=[0], tokens=[1]))  # the root alone
    assert tally.acceptance() == Acceptance(
        steps=4,
        proposed={"suffix": 9, "ngram": 9},
        verified={"suffix": 3 + 1 + 1, "ngram": 2 + 2 + 1},
        accepted={"suffix": 2, "ngram": 2},
        verified_by_depth={1: 3, 2: 2, 3: 1},
        accepted_by_depth={1: 2, 2: 2},
        accepted_lengths={1: 2, 3: 2},
    )


def test_many_steps_count_as_often_as_one() -> None:
    one, many, verdict = Tally(), Tally(), Verdict(path=[0, 1, 2], tokens=[6, 7, 12])
    one.add(draft(), verdict)
    for _ in range(TOGETHER):
        many.add(draft(), verdict)
    for name in ("proposed", "verified", "accepted"):
        expected = {source: TOGETHER * count for source, count in getattr(one, name).items()}
        assert getattr(many, name) == getattr(many, name) == expected  # asking changes nothing


def test_tallies_sum_up() -> None:
    one, other = Tally(), Tally()
    one.add(draft(), Verdict(path=[0, 1], tokens=[6, 1]))
    other.add(draft(), Verdict(path=[0], tokens=[1]))
    found = together([one, other]).acceptance()
    assert (found.steps, found.accepted, found.accepted_lengths) == (2, {"suffix": 1}, {1: 1, 2: 1})
    assert (found.verified_by_depth, found.accepted_by_depth) == ({1: 2, 2: 1}, {1: 1})
    assert together([]).acceptance() == Acceptance(0, {}, {}, {}, {}, {}, {})
