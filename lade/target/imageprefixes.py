"""Beginnings of prompts with images, kept for later prompts that have the same ones.

Tokens do not say what an image shows, so in the keys of kept chunks a digest of all images stands for each token of
one. Chunks are found by the chunk before them: what comes behind an image is kept for that image alone, and what comes
before it is shared with all texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lade.target.call import Call
from lade.target.nextinputs import LAYOUTS, beside_text, next_inputs, tensors_in
from lade.target.prefixes import PrefixCache

IMAGES = {"mm_encoder_outputs", "pixel_values", "token_type_ids"} | LAYOUTS
ENCODED = "image"  # the only kind of encoded inputs whose tokens are known


class ImagePrefixes:
    """The kept beginnings for one prompt with images.

    Args:
        kept: of all prompts.
        keys: of the prompt's tokens.
        images: tokens up to the last one of an image: fewer are of no use, as an image is read as a whole.
        shift: position of the prompt's next token, beyond its length.
    """

    def __init__(self, kept: PrefixCache, keys: Sequence[int], images: int, shift: int) -> None:
        self._kept, self._keys, self._images, self._shift = kept, keys, images, shift

    def restore(self, slot: int, prompt: Sequence[int], tenant: str | None) -> int:
        """As `PrefixCache.restore`; all images are in what the slot holds, if that is anything."""
        found = self._kept.restore(slot, self._keys, tenant, least=self._images)
        if found:
            self._kept.target.positions[slot] += self._shift
        return found

    def keep(self, slot: int, text: Sequence[int], tenant: str | None) -> None:
        """As `PrefixCache.keep`."""
        self._kept.keep(slot, [*self._keys[: len(text)], *text[len(self._keys) :]], tenant)


def image_prefixes(kept: PrefixCache, call: Call) -> ImagePrefixes | None:
    """For the prompt of a call with one row; `None` where it is not known which tokens stand for its images."""
    token, tokens = getattr(call.model.config, "image_token_id", None), call.input_ids[0].tolist()
    beside = {name: call.model_kwargs[name] for name in beside_text(call.model_kwargs)}
    encoded = {kind for kind, value in beside.get("mm_encoder_outputs", {}).items() if value is not None}
    roots = next_inputs(call.model, call.input_ids, call.model_kwargs).of_roots(1)
    if beside.keys() - IMAGES or encoded - {ENCODED} or token not in tokens or roots is None:
        return None
    digest = _digest(beside, len(tokens))
    keys = [digest if each == token else each for each in tokens]
    images = len(keys) - keys[::-1].index(digest)
    return ImagePrefixes(kept, keys, images, roots[0] - len(tokens))


def _digest(beside: Mapping[str, Any], width: int) -> int:
    """Of all images; types of tokens, which have the prompt's width, are left out."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(beside):
        for tensor in tensors_in(beside[name]):
            if tensor.is_floating_point() or tensor.shape[-1:] != (width,):
                found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return int.from_bytes(found.digest(), "little")
