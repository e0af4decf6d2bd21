"""The components of the mixture, most specific first: their names, priors and buckets.

Sources give shares of the next token's probability in this order (`lade.memory.mixture`). Priors lie between those that
make SmolLM2-135M-Instruct's texts of the half to tune on likeliest (`benchmarks/fit.py`) and those that suit
stories3M, where replays (`benchmarks/replay.py`) at 16, 32 and 64 nodes take the fewest steps with SmolLM2 and the
shipped story and code models; those of the reference and the window are older. Those of a corpus suit lade-code-8M on
HumanEval and on MBPP, with its answers to the other suites as the corpus, alone and with its pool of them. How many
observations a prior counts for was chosen with stories3M, for the warm table's on all 48 story prompts; SmolLM2 takes
as many steps with twice as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from lade.base.compiled import compiled

DEPTHS = 3  # buckets of node depths: children of the root, of nodes at depth 1-2, of deeper ones
MATCHES = 6  # buckets of matches: of 1, 2-3, 4-7, 8-15, 16-31, 32 and more tokens
LONG = 1 << (MATCHES - 1)  # the length at which the last of them begins
MISMATCHES = 6  # buckets of matches with a mismatch: after a short or a long one; 1, 2-3, 4-7, more tokens behind it
GRAMS = 3  # buckets of n-grams: matched by one token, two, more
COUNTED = 3  # buckets of counts: after two, three, four tokens
ONCE, AGAIN = 0, MATCHES  # where the buckets begin of matches that occur once in a corpus, and of the others
LENGTHS = 5  # buckets of a warm table's entries: after one token alone, or a known ending of one to four


@dataclass(frozen=True, slots=True)
class Stage:
    """One component of the mixture.

    Attributes:
        name: in the statistics and in saved pools.
        source: its name in `LookaheadConfig.sources`.
        priors: weight per bucket before any observation, between 0 and 1, the same in every depth bucket.
        strength: observations that a prior counts for.
    """

    name: str
    source: str
    priors: tuple[float, ...]
    strength: float = 20.0

    @property
    def buckets(self) -> int:
        return DEPTHS * len(self.priors)


STAGES = (
    Stage("reference", "reference", (0.02, 0.06, 0.3, 0.8, 0.95, 0.99)),
    Stage("suffix", "suffix", (0.02, 0.2, 0.4, 0.6, 0.75, 0.85)),
    Stage("mismatch", "suffix", (0.04, 0.15, 0.2, 0.3, 0.5, 0.8)),
    Stage("corpus", "corpus", (0.1, 0.1, 0.25, 0.5, 0.7, 0.8, 0.1, 0.2, 0.35, 0.5, 0.7, 0.8)),
    Stage("window", "window", (0.1, 0.2, 0.3)),
    Stage("counts", "counts", (0.2, 0.25, 0.35)),
    Stage("recycled-4", "recycled", (0.4,)),
    Stage("recycled-3", "recycled", (0.45,)),
    Stage("recycled-2", "recycled", (0.45,)),
    Stage("recycled-1", "recycled", (0.75,)),
    Stage("kept", "recycled", (0.25, 0.25, 0.45, 0.65)),
    Stage("corpus-often", "corpus", (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)),
    Stage("warm", "warm", (0.85,) * LENGTHS, strength=10.0),
    Stage("siblings", "recycled", (0.25,)),
    Stage("counts-1", "counts", (0.15,)),
    Stage("recent", "recent", (0.5,)),
)
NAMES = tuple(stage.name for stage in STAGES)
REFERENCE, OWN, MISMATCH, CORPUS, WINDOW, COUNTS, RECYCLED_4 = range(7)
RECYCLED_1, KEPT, CORPUS_OFTEN, WARM, SIBLINGS, SHORT_COUNTS, RECENT = range(9, len(STAGES))
FIRSTS = tuple(accumulate((stage.buckets for stage in STAGES), initial=0))  # bucket of each stage among all
BUCKETS = FIRSTS[-1]
NUMBER = len(STAGES)


@compiled
def depth_bucket(depth: int) -> int:
    """Which of the `DEPTHS` buckets the children of a node at this depth belong to."""
    return 0 if depth == 0 else 1 if depth < 3 else 2


@compiled
def match_bucket(length: int) -> int:
    """Which of the `MATCHES` buckets a match of this length belongs to."""
    bucket = 0
    while length > 1 and bucket < MATCHES - 1:
        length, bucket = length >> 1, bucket + 1
    return bucket
