"""What one request drafts from, in arrays: its text, what the model predicted, and its draft tree."""

from __future__ import annotations

from typing import NamedTuple

from lade.base.compiled import compiled
from lade.memory import automaton as automata
from lade.memory import corpus as corpora
from lade.memory import coupling, followers, matches, recent, reference, siblings
from lade.memory.automaton import append, begin_text
from lade.memory.context import NOTHING, SHORT
from lade.memory.corpus import read_on
from lade.memory.counting import COUNTING
from lade.memory.coverage import COVERAGE, cover
from lade.memory.followers import add_follower
from lade.memory.hashing import Array
from lade.memory.matches import advance, rematch
from lade.memory.reference import follow_output
from lade.memory.stages import CORPUS as BY_CORPUS
from lade.memory.stages import LONG
from lade.memory.stages import NUMBER as STAGE_NUMBER

COUNTED, COVERED, OF_PROMPT = COUNTING.places, COVERAGE.places, COVERAGE.prompt

# Fields of the integers: whether each stage may predict (of the window: how many tokens); its text, the reference, what
# followed the contexts of its text, the n-grams of its Jacobi window, recent tokens, what followed siblings of its last
# token, sampling noise; the match of its end (`lade.memory.matches`), that in the corpus; where its draft tree stands;
# which of its pool's requests it is.
USES = 0
OWN = USES + STAGE_NUMBER
REFERENCE = OWN + automata.FIELDS
COUNTS = REFERENCE + reference.FIELDS
GRAMS = COUNTS + followers.FIELDS
RECENT = GRAMS + followers.FIELDS
SIBLINGS = RECENT + recent.FIELDS
NOISE = SIBLINGS + siblings.FIELDS
MATCH = NOISE + coupling.FIELDS
IN_CORPUS = MATCH + matches.FIELDS
NODES = IN_CORPUS + corpora.FIELDS
BEGUN = NODES + 1
HEADER = BEGUN + 1
# Fields of the floats: how far the warm table is believed, recent masses, those of siblings, path probabilities of the
# nodes.
COVER, RECENT_MASSES = 0, 3
SIBLING_MASSES = RECENT_MASSES + recent.FIELDS
MASSES = SIBLING_MASSES + siblings.FIELDS
# Of a node: its context stands from FIRST to LAST; then the match in its own text; that in the reference is the index
# in it where the match goes on (-1: none), and its length; then the match in the corpus.
TOKEN, PARENT, DEPTH, STAGE, FIRST = range(5)
LAST, OWN_MATCH = 7, 8
REFERENCE_END, REFERENCE_LENGTH = range(OWN_MATCH + matches.FIELDS, OWN_MATCH + matches.FIELDS + 2)
CORPUS_MATCH = REFERENCE_LENGTH + 1
WIDTH = CORPUS_MATCH + corpora.FIELDS


class Row(NamedTuple):
    """One request.

    Attributes:
        ints: int32, of the request alone.
        floats: float64, of the request alone.
        pool: int32, the recycled predictions of its pool.
        pool_masses: float32, their probabilities.
        weights: [2 buckets] float64, of its pool: the weights, then the observations behind each.
        warm: int32, the warm table.
        warm_masses: float32, its probabilities.
        corpus: int32, texts that outputs may repeat (`lade.memory.corpus`).
        noise: float32, of the next tokens of its text (`lade.memory.coupling`); empty where nothing is sampled.
    """

    ints: Array
    floats: Array
    pool: Array
    pool_masses: Array
    weights: Array
    warm: Array
    warm_masses: Array
    corpus: Array
    noise: Array


ELEMENTS = "i4", "f8", "i4", "f4", "f8", "i4", "f4", "i4", "f4"  # of its arrays, as dtypes


@compiled
def token_back(ints: Array, back: int) -> int:
    """A token of the text, `back` before its end; `NOTHING` before its first."""
    place = ints[OWN + automata.TOKENS] - back
    return ints[ints[OWN + automata.TEXT] + place] if place >= 0 else NOTHING


@compiled
def read_text(row: Row, tokens: Array, prompt: int) -> None:
    """Begin with a text, of which so many tokens are the prompt; there must be room."""
    ints = row.ints
    begin_text(ints, OWN)
    for place in range(len(tokens)):
        token, left = tokens[place], len(tokens) - place
        if left <= COUNTED:
            count_token(ints, token)
        if left <= COVERED:
            cover_token(row, token, OF_PROMPT)
        append_token(ints, token)
        if left <= LONG:
            match_corpus(row, token)
        if place >= prompt:
            follow_output(ints, REFERENCE, token)


@compiled
def write_token(row: Row, token: int) -> None:
    """Append an emitted token; there must be room."""
    count_token(row.ints, token)
    cover_token(row, token, 1.0)
    append_token(row.ints, token)
    match_corpus(row, token)
    follow_output(row.ints, REFERENCE, token)


@compiled
def append_token(ints: Array, token: int) -> None:
    """Append a token to the text, and find the match of its end."""
    advance(ints, OWN, MATCH, token, MATCH)
    append(ints, OWN, token)
    rematch(ints, OWN, MATCH)


@compiled
def match_corpus(row: Row, token: int) -> None:
    """Find the match of the text's end in the corpus."""
    if row.ints[USES + BY_CORPUS]:
        read_on(row.corpus, row.ints, IN_CORPUS, token, IN_CORPUS)


@compiled
def count_token(ints: Array, token: int) -> None:
    """Count what follows the end of the text, after its last one to four tokens."""
    a, b, c, d = token_back(ints, 4), token_back(ints, 3), token_back(ints, 2), token_back(ints, 1)
    add_follower(ints, COUNTS, a, b, c, d, token, False)
    add_follower(ints, COUNTS, SHORT, b, c, d, token, False)
    add_follower(ints, COUNTS, SHORT, SHORT, c, d, token, False)
    add_follower(ints, COUNTS, SHORT, SHORT, SHORT, d, token, False)


@compiled
def cover_token(row: Row, token: int, weight: float) -> None:
    """Compare the warm table with what follows the end of the text."""
    ints = row.ints
    a, b, c, d = token_back(ints, 4), token_back(ints, 3), token_back(ints, 2), token_back(ints, 1)
    cover(row.floats, COVER, row.warm, row.warm_masses, a, b, c, d, token, weight)
