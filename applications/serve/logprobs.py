"""Log probabilities in the two shapes of OpenAI's API. Knows a tokenizer; no request and no endpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import lade
from lade.applications.serve.answer import Told
from lade.applications.serve.text import BROKEN, Detokenizer
from lade.core.logprobs import TokenLogprob

LOWEST = -9999.0  # stands for log probabilities that JSON cannot hold
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTexts:
    """The text and the bytes of single tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._anchor = tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
        self._octets = {character: octet for octet, character in enumerate(_byte_characters())}

    def text(self, token: int) -> str:
        """One token's text inside a text; bytes that are no character come as U+FFFD."""
        before = self._decode(self._anchor, special=False)
        return self._decode([*self._anchor, token], special=False)[len(before) :]

    def octets(self, token: int) -> list[int]:
        text = self.text(token)
        if BROKEN not in text:
            return list(text.encode())
        piece = str(self._tokenizer.convert_ids_to_tokens(token))
        byte = BYTE.fullmatch(piece)
        if byte is not None:
            return [int(byte[1], 16)]
        return [self._octets[each] for each in piece] if set(piece) <= set(self._octets) else list(text.encode())

    def of_prompt(self, request: lade.Request) -> str:
        return self._decode(request.tokens[: request.prompt_length], special=True)

    def offsets(self, tokens: Sequence[int]) -> list[int]:
        """Characters before each token of a text; tokens that are parts of one character have the same number."""
        detokenizer, found, size = Detokenizer(self._tokenizer, ()), list[int](), 0
        for token in tokens:
            found.append(size)
            size += len(detokenizer.add(token))
        return found

    def _decode(self, tokens: list[int], special: bool) -> str:
        """`special`: whether special tokens are left out."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=special, clean_up_tokenization_spaces=False))


class ChatLogprobs:
    """As chats have them: an object for each token that has text, so not for the one that ends it.

    Args:
        ends: tokens that end a text.
    """

    def __init__(self, texts: TokenTexts, ends: frozenset[int]) -> None:
        self._texts, self._ends = texts, ends

    def told(self, tokens: Sequence[Told]) -> list[dict[str, Any]]:
        return [self._token(each.noted) for each in tokens if each.noted.token not in self._ends]

    def _token(self, noted: TokenLogprob) -> dict[str, Any]:
        top = [self._place(token, value) for token, value in noted.top]
        return self._place(noted.token, noted.logprob) | {"top_logprobs": top}

    def _place(self, token: int, value: float) -> dict[str, Any]:
        return {"token": self._texts.text(token), "logprob": finite(value), "bytes": self._texts.octets(token)}


class CompletionLogprobs:
    """As completions have them: parallel lists."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts

    def of_prompt(self, tokens: Sequence[int], noted: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Of a prompt, whose first token has no log probability."""
        first, *offsets = self._texts.offsets(tokens)
        head = {"tokens": [self._texts.text(tokens[0])], "token_logprobs": [None], "top_logprobs": [None]}
        head["text_offset"] = [first]
        rest = self.told([Told(*each) for each in zip(offsets, noted, strict=True)])
        return {name: head[name] + rest[name] for name in head}

    def told(self, tokens: Sequence[Told], behind: int = 0) -> dict[str, Any]:
        """`behind`: characters before the text in which these tokens begin."""
        return {
            "tokens": [self._texts.text(each.noted.token) for each in tokens],
            "token_logprobs": [finite(each.noted.logprob) for each in tokens],
            "top_logprobs": [self._top(each.noted) for each in tokens],
            "text_offset": [behind + each.begin for each in tokens],
        }

    def _top(self, noted: TokenLogprob) -> dict[str, float]:
        """By text; of several tokens with one text the likeliest, and the token itself."""
        found: dict[str, float] = {}
        for token, value in (*noted.top, (noted.token, noted.logprob)):
            found.setdefault(self._texts.text(token), finite(value))
        return found


def finite(value: float) -> float:
    return value if value >= LOWEST else LOWEST


def _byte_characters() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies: itself, or one from 256 on."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(octet if octet in shown else next(others)) for octet in range(256)]
