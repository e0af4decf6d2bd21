"""What the requests of a step do: decode with drafts, decode alone, or read a chunk of their prompts.

Where prompts are read, their tokens and those of draft trees share one total: prompts come first, up to a share, and
up to what the time of steps allows (`lade.pace.reading`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lade.core.request import Request
from lade.core.tree import Draft, chain
from lade.engine.admission import Admission, reads, scores_prompt
from lade.engine.protocols import Target
from lade.pace.reading import UNLIMITED, WholeReading

STEP_TOKENS = 256  # of a step that reads prompts
SHARE = 4  # at least one part in 4 of these is for prompts, and one for drafts, where other requests decode


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next tokens of a request's prompt, up to token `end`."""

    request: Request
    end: int

    def __len__(self) -> int:
        return self.end - self.request.prefilled

    def draft(self) -> Draft:
        """A forced chain. Logits are asked for after a prompt's last token, and after all if these are scored."""
        request, end = self.request, self.end
        tokens = request.tokens[request.prefilled : end]
        return chain(tokens, asked=end == request.prompt_length, scored=scores_prompt(request))


class StepPlan(NamedTuple):
    """One step.

    Attributes:
        decoding: requests that decode, those that get drafts first.
        drafting: how many get drafts.
        depths: the largest depth of each one's draft.
        max_nodes: the most nodes of each one's draft, so that the step keeps to its total.
        reading: chunks of prompts.
        unread: whether any prompt is not read to its end before the step.
        outgrown: requests for whose root the model may have no position. Their forwards may raise, so each is alone.
    """

    decoding: list[Request]
    drafting: int
    depths: list[int]
    max_nodes: int
    reading: list[Chunk]
    unread: bool
    outgrown: list[Request]

    def forwards(self, packed: bool) -> list[tuple[list[Request], list[Chunk]]]:
        """What each forward carries: one for all where it needs no padding, else one more for each prompt."""
        if packed or not self.reading:
            return [(self.decoding, self.reading)] if self.decoding or self.reading else []
        return [*([(self.decoding, [])] if self.decoding else []), *(([], [chunk]) for chunk in self.reading)]


def planned(
    active: Sequence[Request], target: Target, admission: Admission, tokens: int, reading: WholeReading
) -> StepPlan:
    """The plan of a step of all active requests.

    Args:
        tokens: the step's total, if it reads prompts.
        reading: bounds the prompt tokens.
    """
    decoding: list[Request] = []
    depths: list[int] = []
    outgrown: list[Request] = []
    unread: list[Request] = []
    for request in sorted(active, key=_without_drafts):
        if reads(request):
            unread.append(request)
            continue
        depth = target.depth_limit(request.slot, request.limit - request.emitted)
        if depth < 0 and admission.opened(request):  # a call's own loop lets its caller see the error
            outgrown.append(request)
        else:
            decoding.append(request)
            depths.append(max(0, depth))
    rows, drafting = len(decoding), sum(request.drafts for request in decoding)
    most = min(most_prompt_tokens(tokens, rows), reading.most(rows, len(unread))) if unread else 0
    chunks = _chunks(unread, target, most)
    if not chunks:
        return StepPlan(decoding, drafting, depths, UNLIMITED, chunks, bool(unread), outgrown)
    left = tokens - sum(map(len, chunks))
    return StepPlan(decoding, drafting, depths, max(1, left // max(1, rows)), chunks, True, outgrown)


def _without_drafts(request: Request) -> bool:
    return not request.drafts


def most_prompt_tokens(tokens: int, rows: int) -> int:
    """The most prompt tokens in a step of `tokens`, in which `rows` other requests decode."""
    if not rows:
        return tokens
    share = max(1, tokens // SHARE)
    return max(share, tokens - max(rows, share))


def _chunks(unread: Sequence[Request], target: Target, most: int) -> list[Chunk]:
    """Chunks of the first prompts, in order, with at most `most` tokens in all."""
    chunks: list[Chunk] = []
    for request in unread:
        if most <= 0:
            break
        end = request.prefilled + min(most, target.max_nodes([request.slot]))
        chunks.append(Chunk(request, min(end, request.prompt_length)))
        most -= len(chunks[-1])
    return chunks
