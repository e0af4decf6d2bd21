"""The tables of a suffix automaton (`lade.memory.automaton`) in an array of regions."""

from __future__ import annotations

from lade.base.compiled import Compiled
from lade.memory import automaton as automata
from lade.memory.regions import Regions, Table

READ = Compiled(automata.read)


class TextTables:
    """Room for a text.

    Args:
        own: where the fields of the automaton begin.
    """

    def __init__(self, regions: Regions, own: int) -> None:
        moves = automata.MOVES, automata.MOVE_NUMBER, automata.INDEX, automata.SLOTS
        self._text = Table(regions, (own + automata.TEXT, own + automata.TOKENS), width=1)
        self._states = Table(regions, (own + automata.STATES, own + automata.STATE_NUMBER), automata.WIDTH)
        self._moves = Table(regions, [own + field for field in moves], automata.WIDTH, pairs=True)

    @property
    def room(self) -> int:
        """Tokens."""
        return self._text.room

    def reserve(self, tokens: int) -> None:
        self._text.reserve(tokens)
        self._states.reserve(automata.MOST_STATES * self.room + 2)
        self._moves.reserve(automata.MOST_MOVES * self.room + 1)
