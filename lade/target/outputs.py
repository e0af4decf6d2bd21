"""What a forward of drafts computed: the logits of the queried nodes, and what the host reads of them.

From an accelerator the host reads once per forward: choices, greedy tokens and top-k come back in one copy. On a CPU
machine code finds them in one pass over the logits (`lade.core.readout`); until it is loaded, numpy and torch do. Knows
drafts as rows and nodes, no model. M queried nodes of all rows (the lines), V vocabulary, k tokens of a top-k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from lade.core.readout import READ_ROWS, read_out
from lade.core.topk import likeliest
from lade.memory.predictions import TOP

SMALL = 1 << 19  # float32 logits that a core keeps in its cache


@dataclass(slots=True)
class _Read:
    """What the host has of a forward, by line; `None`: not read yet."""

    greedy: list[int] | None = None
    nan: list[bool] | None = None
    top: tuple[np.ndarray, np.ndarray] | None = None

    @classmethod
    def of(cls, table: np.ndarray) -> _Read:
        """From [M, 2 + 2k] int32 of choice, NaN, and top-k: tokens and the bits of their probabilities."""
        k = table.shape[1] // 2 - 1
        top = table[:, 2 : 2 + k].copy(), table[:, 2 + k :].copy().view(np.float32)
        return cls(table[:, 0].tolist(), (table[:, 1] != 0).tolist(), top)


@dataclass(eq=False)
class Outputs:
    """Logits of the queried nodes; argmax and top-k are computed once, on first use. For one thread.

    Attributes:
        logits: [M, V], raw, in the model's precision.
        lines: per row of the forward: node -> its line in the logits.
        inverse_temperatures: per row, of the probabilities that `likeliest` returns; `None` for 1.
        vocabulary: `likeliest` returns ids below this one; `None` for all.
        one_pass: whether `likeliest` is asked for where drafts are, so that one pass over the logits reads everything.
    """

    logits: torch.Tensor
    lines: Sequence[Mapping[int, int]]
    inverse_temperatures: Sequence[float] | None = None
    vocabulary: int | None = None
    one_pass: bool = False
    _floats: torch.Tensor | None = field(default=None, init=False, repr=False)
    _read: _Read = field(default_factory=_Read, init=False, repr=False)
    _chosen: list[tuple[Sequence[int], torch.Tensor]] = field(default_factory=list, init=False, repr=False)
    _choices: dict[int, int] = field(default_factory=dict, init=False, repr=False)  # by line

    @classmethod
    def read(cls, lines: Sequence[Mapping[int, int]], table: np.ndarray) -> Outputs:
        """Outputs whose logits stay where they are, and after whose lines tokens are chosen.

        Args:
            table: [M, 2 + 2k] int32, as `_table` makes it, with the chosen tokens in place of the likeliest ones.
        """
        found = cls(torch.empty(len(table), 0), lines)
        found._read = _Read.of(table)
        found._choices = dict(enumerate(found._read.greedy or ()))
        return found

    @property
    def chosen(self) -> bool:
        """Whether tokens are chosen after all lines, and the host has them."""
        return bool(self._choices) and not self._chosen

    def at(self, row: int, node: int) -> torch.Tensor:
        """[1, V] raw logits after one node."""
        return self.logits.narrow(0, self.lines[row][node], 1)

    def of(self, lines: Sequence[int]) -> torch.Tensor:
        """[len(lines), V] raw logits of ascending lines."""
        first = lines[0]
        if lines[-1] - first + 1 == len(lines):
            return self.logits.narrow(0, first, len(lines))
        return self.logits[list(lines)]

    def choose_ahead(self, lines: Sequence[int], tokens: torch.Tensor) -> None:
        """Hand in the tokens chosen after some lines, on the device; the host gets them with everything else."""
        self._chosen.append((lines, tokens))

    def choice(self, row: int, node: int) -> int:
        """The token that was chosen ahead after one node."""
        if self._chosen:
            self._fetch_choices()
        return self._choices[self.lines[row][node]]

    def greedy(self, row: int, node: int) -> int:
        """The most likely token after one node."""
        if self._read.greedy is None:
            self._fetch(choices_alone=self._choices_suffice)
        if self._read.greedy is None:  # numpy takes a tenth of torch's time; the same first maximum
            self._read.greedy = self._float32().numpy().argmax(-1).tolist()
        return self._read.greedy[self.lines[row][node]]

    def nan_rows(self, rows: Sequence[int]) -> list[int]:
        """Those of the rows whose logits after the root contain NaN."""
        lines = [self.lines[row][0] for row in rows]
        if self._read.nan is None:
            self._fetch(choices_alone=self._choices_suffice)
        if self._read.nan is None:  # the largest is NaN where one is; numpy takes a tenth of torch's time
            found = np.isnan(self._float32().numpy()[lines].max(-1)).tolist()
        else:
            found = [self._read.nan[line] for line in lines]
        return [row for row, nan in zip(rows, found, strict=True) if nan]

    def likeliest(self) -> tuple[np.ndarray, np.ndarray]:
        """[M, k] int32 most likely next tokens and their [M, k] float32 probabilities, likeliest first."""
        if self._read.nan is None:
            self._fetch()
        if self._read.top is None:
            tokens, probabilities = self._top_k()
            self._read.top = tokens.to(torch.int32).numpy(), probabilities.float().numpy()
        return self._read.top

    def lines_of(self, row: int, nodes: Sequence[int]) -> list[int]:
        """The lines of some nodes."""
        return [*map(self.lines[row].__getitem__, nodes)]

    @property
    def _on_host(self) -> bool:
        return bool(self.logits.is_cpu)

    @property
    def _choices_suffice(self) -> bool:
        """Whether nobody is expected to ask for more than choices and NaN, which numpy reads in next to no time."""
        if self.one_pass and self.logits.shape[0] > len(self.lines):
            return False
        return self.logits.dtype == torch.float32 and self.logits.numel() <= SMALL

    def _float32(self) -> torch.Tensor:
        """[M, V]"""
        if self._floats is None:
            self._floats = self.logits.float()
        return self._floats

    def _fetch(self, choices_alone: bool = False) -> None:
        """Everything that the host may ask for, where there is a way that finds all at once.

        Args:
            choices_alone: on a CPU, leave it to numpy.
        """
        if not self._on_host:
            self._copy()
        elif READ_ROWS.ready and not choices_alone:
            self._read_out()

    def _fetch_choices(self) -> None:
        if not self._on_host and self._read.greedy is None:
            self._copy()
            return
        for lines, tokens in self._chosen:
            self._choices.update(zip(lines, tokens.tolist(), strict=True))
        self._chosen.clear()

    def _read_out(self) -> None:
        """By machine code, in one pass over the logits; no top-k where there is NaN."""
        logits = self.logits if self.logits.dtype in (torch.float32, torch.bfloat16) else self._float32()
        within = min(logits.shape[-1], self.vocabulary or logits.shape[-1])
        column = self._inverse_temperature()
        heats = column[:, 0].numpy() if isinstance(column, torch.Tensor) else column
        found = read_out(logits, within, min(TOP, within), heats)
        nan = found.nan.tolist()
        self._read = _Read(found.greedy.tolist(), nan, None if any(nan) else (found.tokens, found.probabilities))

    def _top_k(self) -> tuple[torch.Tensor, torch.Tensor]:
        """[M, k] tokens and probabilities; nothing else of the logits is copied to the host."""
        logits = self._float32()[:, : self.vocabulary]
        return likeliest(logits, min(TOP, logits.shape[-1]), self._inverse_temperature())

    def _inverse_temperature(self) -> float | torch.Tensor:
        """One for all rows, or [M, 1]."""
        own = self.inverse_temperatures or (1.0,)
        if own.count(own[0]) == len(own):
            return own[0]
        column = self.logits.new_ones(len(self.logits), 1, dtype=torch.float32)
        for lines, value in zip(self.lines, own, strict=True):
            if lines:
                column[min(lines.values()) : max(lines.values()) + 1] = value
        return column

    def _argmax(self) -> torch.Tensor:
        """[M]; ties are broken in float32, as in plain decoding."""
        logits = self._float32() if self.logits.dtype == torch.float64 else self.logits
        return logits.argmax(-1)

    def _table(self) -> torch.Tensor:
        """[M, 2 + 2k] int32 of choice, NaN, and top-k: tokens and the bits of their probabilities."""
        greedy, (tokens, probabilities) = self._argmax(), self._top_k()
        nan = self.logits.gather(1, greedy[:, None])[:, 0].isnan()  # NaN counts as the largest
        bits = probabilities.float().view(torch.int32)
        columns = [greedy[:, None], nan[:, None], tokens, bits]
        return torch.cat([column.to(torch.int32) for column in columns], dim=1)

    def _copied(self, found: torch.Tensor) -> np.ndarray:
        """All elements of int32 in one row, on the host until the next step."""
        return found.cpu().numpy().reshape(-1)

    def _copy(self) -> None:
        """From an accelerator, in one copy of integers."""
        found = self._table()
        chosen = [tokens.flatten().to(torch.int32) for _, tokens in self._chosen]
        host = self._copied(torch.cat([found.flatten(), *chosen]) if chosen else found)
        table, rest = host[: found.numel()].reshape(found.shape), host[found.numel() :].tolist()
        self._read = _Read.of(table)
        lines = [line for some, _ in self._chosen for line in some]
        self._choices = dict(zip(lines, rest, strict=True))
        self._chosen.clear()
