"""Images of a chat: their files, and what the model reads of a conversation that has some. Knows no terminal.

Pillow, and the model's processor, are imported and loaded with the first image.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lade.applications.chat.formats import Format
from lade.applications.chat.messages import Message, images_in, with_places
from lade.applications.images.prompt import Prompt
from lade.base.shown import one_line
from lade.files.regularfile import MEBIBYTE, naming, read_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from lade.applications.images.inputs import ImageInputs

MOST_BYTES = 32 * MEBIBYTE  # of an image's file
NO_PILLOW = "images need Pillow; pip install 'lade-decoding[serve]'"


@dataclass(frozen=True)
class Attachment:
    """An image of the next message.

    Attributes:
        url: its file as a data URL.
        size: its width and height in pixels.
    """

    name: str
    url: str
    size: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.name} ({self.size[0]} x {self.size[1]} pixels)"


def read_image(path: Path) -> Attachment:
    """The image in a file.

    Raises:
        UnreadableFileError: the file cannot be read.
        ValueError: it is no image, or Pillow is not installed.
    """
    _check_pillow()
    from lade.applications.images.pixels import decoded, media_type

    with naming(path):
        file = base64.b64encode(read_bytes(path, MOST_BYTES)).decode()
    (image,) = decoded([(str(path), file)])
    return Attachment(path.name, f"data:{media_type(str(path), file)};base64,{file}", image.size)


class ChatImages:
    """Makes prompts of conversations with images.

    Args:
        load: the model's processor of images; `None` where it has none.
    """

    def __init__(self, model: PreTrainedModel, load: Callable[[], Any] = lambda: None) -> None:
        self._model, self._load = model, load

    @property
    def template(self) -> str | None:
        """The chat template of the processor; `None` where it has none."""
        found = None if isinstance(self._inputs, str) else self._inputs.template_owner
        return None if found is None else found.chat_template

    def check(self, urls: Sequence[str] = ()) -> None:
        """ValueError where the model reads no images, or one of these, as data URLs, is none."""
        self._reading()
        from lade.applications.images.pixels import decoded

        decoded(_named(urls))

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """The prompt of a conversation. ValueError as of `check`, and where the template or processor refuses it."""
        told = with_places(messages)
        images = _named(images_in(messages))
        return self._reading().prompt(told, images, lambda owner: Format(None, in_parts=True).text(owner, told))

    def _reading(self) -> ImageInputs:
        if isinstance(self._inputs, str):
            raise ValueError(self._inputs)
        return self._inputs

    @cached_property
    def _inputs(self) -> ImageInputs | str:
        """What makes inputs of images, or why there is nothing."""
        try:
            processor = self._load()
            if processor is None:
                return "images must go to a model that reads them, got one without a processor of images"
            _check_pillow()
            from lade.applications.images.inputs import ImageInputs

            return ImageInputs(processor, self._model)
        except (ImportError, OSError, ValueError) as error:
            return NO_PILLOW if find_spec("PIL") is None else f"the model's processor does not load: {one_line(error)}"


def _check_pillow() -> None:
    if find_spec("PIL") is None:
        raise ValueError(NO_PILLOW)


def _named(urls: Sequence[str]) -> list[tuple[str, str]]:
    return [(f"image {number}", url.partition(",")[2]) for number, url in enumerate(urls, 1)]
