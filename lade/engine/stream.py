"""Streaming tokens as plain decoding does. Knows requests, no model and no sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lade.core.request import Request


class Stream:
    """Sends tokens to a streamer one index at a time, all rows together.

    Args:
        streamer: of transformers, or `None`.
        pad: sent for rows that have ended.
    """

    def __init__(self, streamer: Any, requests: Sequence[Request], pad: int) -> None:
        self.streamer, self.requests, self.pad = streamer, requests, pad
        self.sent = 0
        self.begin_step = getattr(streamer, "begin_step", lambda: None)

    def flush(self) -> None:
        """Send every index that all rows have reached."""
        if self.streamer is None:
            return
        waiting = [request.emitted for request in self.requests if not request.finished]
        ready = min(waiting) if waiting else max(request.emitted for request in self.requests)
        for index in range(self.sent, ready):
            column = [
                request.tokens[request.prompt_length + index] if index < request.emitted else self.pad
                for request in self.requests
            ]
            self.streamer.put(torch.tensor(column))
        self.sent = max(self.sent, ready)
