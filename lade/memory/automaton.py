"""Suffix automaton of a token text in an array: the longest suffix that occurred before, and where.

Online (Blumer et al. 1985), amortised O(1) per token whatever the length of the text: at most 2 states and 3 moves per
token. A state is a set of substrings that end at the same positions; its suffix link leads to the longest suffix of
them that ends at more positions. State 0 is the root, the empty string.
"""

from __future__ import annotations

from lade.base.compiled import compiled
from lade.memory.hashing import Array, pair_slot

# Fields of a text, from its place in the header on.
TEXT, TOKENS, STATES, STATE_NUMBER, MOVES, MOVE_NUMBER, INDEX, SLOTS, LAST = range(9)
FIELDS = 9
LINK, LENGTH, END, FIRST = range(4)  # of a state: suffix link, length, end of its last occurrence, first move
FROM, TOKEN, TO, NEXT = range(4)  # of a move: state, token, state after it, next move of the same state
WIDTH = 4
MOST_STATES, MOST_MOVES = 2, 3  # per token
UPDATED = 4  # states per token, longest first, whose last occurrence is updated; on real texts as good as all


@compiled
def begin_text(ints: Array, own: int) -> None:
    """Make a text empty."""
    ints[own + TOKENS] = ints[own + STATE_NUMBER] = ints[own + MOVE_NUMBER] = 0
    ints[own + LAST] = add_state(ints, own, 0, -1, -1)


@compiled
def read(ints: Array, own: int, tokens: Array) -> None:
    """Begin with a text; there must be room."""
    begin_text(ints, own)
    for place in range(len(tokens)):
        append(ints, own, tokens[place])


@compiled
def append(ints: Array, own: int, token: int) -> None:
    """Append a token to the text whose fields begin at `own`; there must be room."""
    end, states = ints[own + TOKENS], ints[own + STATES]
    ints[ints[own + TEXT] + end] = token
    ints[own + TOKENS] = end + 1
    state, new = ints[own + LAST], add_state(ints, own, end + 1, end + 1, 0)
    ints[own + LAST] = new
    move = find_move(ints, own, state, token)
    while state >= 0 and move < 0:
        add_move(ints, own, state, token, new)
        ints[states + state * WIDTH + END] = end
        state = ints[states + state * WIDTH + LINK]
        if state >= 0:
            move = find_move(ints, own, state, token)
    if state >= 0:
        target = ints[ints[own + MOVES] + move * WIDTH + TO]
        length = ints[states + state * WIDTH + LENGTH] + 1
        if ints[states + target * WIDTH + LENGTH] != length:
            target = split(ints, own, state, token, target, length)
        ints[states + new * WIDTH + LINK] = target
    for _ in range(UPDATED):
        if state <= 0:
            break
        ints[states + state * WIDTH + END] = end
        state = ints[states + state * WIDTH + LINK]


@compiled
def split(ints: Array, own: int, state: int, token: int, target: int, length: int) -> int:
    """A state for the longest string of `state` and `token`, taken out of a longer one."""
    states, moves = ints[own + STATES], ints[own + MOVES]
    old = states + target * WIDTH
    new = add_state(ints, own, length, ints[old + END], ints[old + LINK])
    move = ints[old + FIRST]
    while move >= 0:
        add_move(ints, own, new, ints[moves + move * WIDTH + TOKEN], ints[moves + move * WIDTH + TO])
        move = ints[moves + move * WIDTH + NEXT]
    ints[old + LINK] = new
    while state >= 0:
        move = find_move(ints, own, state, token)
        if move < 0 or ints[moves + move * WIDTH + TO] != target:
            break
        ints[moves + move * WIDTH + TO] = new
        state = ints[states + state * WIDTH + LINK]
    return new


@compiled
def add_state(ints: Array, own: int, length: int, end: int, link: int) -> int:
    new = ints[own + STATE_NUMBER]
    ints[own + STATE_NUMBER] = new + 1
    at = ints[own + STATES] + new * WIDTH
    ints[at + LINK], ints[at + LENGTH], ints[at + END], ints[at + FIRST] = link, length, end, -1
    return new


@compiled
def add_move(ints: Array, own: int, state: int, token: int, target: int) -> None:
    move, first = ints[own + MOVE_NUMBER], ints[own + STATES] + state * WIDTH + FIRST
    ints[own + MOVE_NUMBER] = move + 1
    slot = pair_slot(ints, ints[own + INDEX], ints[own + SLOTS], ints[own + MOVES], WIDTH, state, token)
    at = ints[own + MOVES] + move * WIDTH
    ints[at + FROM], ints[at + TOKEN], ints[at + TO], ints[at + NEXT] = state, token, target, ints[first]
    ints[first] = ints[slot] = move


@compiled
def find_move(ints: Array, own: int, state: int, token: int) -> int:
    """The move of a state with a token; -1 if there is none."""
    return ints[pair_slot(ints, ints[own + INDEX], ints[own + SLOTS], ints[own + MOVES], WIDTH, state, token)]


@compiled
def at(ints: Array, own: int, index: int) -> int:
    """The token there. Past the end, the text repeats what followed the longest suffix that occurred before."""
    text, tokens = ints[own + TEXT], ints[own + TOKENS]
    if index < tokens:
        return ints[text + index]
    end = ints[ints[own + STATES] + repeated(ints, own) * WIDTH + END]
    return ints[text + end + (index - tokens) % (tokens - end)]


@compiled
def repeated(ints: Array, own: int) -> int:
    """The state of the longest suffix of the text that also occurs earlier in it; 0 or less: there is none."""
    return ints[ints[own + STATES] + ints[own + LAST] * WIDTH + LINK]
