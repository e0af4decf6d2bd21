"""The parts of messages that hold an image in base64, of OpenAI's API and of Anthropic's. Knows no pixels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from lade.applications.images.parts import HEAD
from lade.applications.serve.fields import Fields, Json, NotBuilt, Text, either, where
from lade.base.shown import shown

FETCHES_NOTHING = "since the server fetches nothing"


def _data_url(value: str) -> str:
    if re.match(HEAD, value) is None:
        allowed = "a data URL of a PNG, JPEG, WebP or GIF image in base64"
        raise ValueError(f"must be {allowed}, {FETCHES_NOTHING}, got {shown(value)}")
    return value


def _in_base64(value: Any) -> Any:
    if value != "base64":
        raise ValueError(f"must be 'base64', {FETCHES_NOTHING}, got {shown(value)}")
    return value


DataUrl = Annotated[str, AfterValidator(_data_url), Field(json_schema_extra={"pattern": HEAD})]


class ImageFields(Fields):
    """A part that holds an image.

    Attributes:
        PLACE: the field of the part that has it.
        url: the image as a data URL.
    """

    PLACE: ClassVar[str]

    @property
    def url(self) -> str:
        raise NotImplementedError

    @property
    def encoded(self) -> str:
        """The image in base64."""
        return self.url.partition(",")[2]

    def for_chat(self) -> Json:
        """The part as chats have it."""
        return {"type": "image_url", "image_url": {"url": self.url}}


class ImageUrl(Fields):
    url: DataUrl
    detail: Any = None  # changes nothing here


class ImagePart(ImageFields):
    """An image of a chat."""

    PLACE: ClassVar = "image_url.url"
    type: Literal["image_url"]
    image_url: ImageUrl
    cache_control: Any = None  # changes nothing here

    @property
    def url(self) -> str:
        return self.image_url.url


class InputImagePart(ImageFields):
    """An image of /v1/responses."""

    PLACE: ClassVar = "image_url"
    type: Literal["input_image"]
    image_url: DataUrl
    file_id: NotBuilt = None
    detail: Any = None  # changes nothing here

    @property
    def url(self) -> str:
        return self.image_url


class ImageSource(Fields):
    type: Annotated[Literal["base64"], BeforeValidator(_in_base64)]
    media_type: Literal["image/png", "image/jpeg", "image/webp", "image/gif"]
    data: Text


class ImageBlock(ImageFields):
    """An image of /v1/messages."""

    PLACE: ClassVar = "source.data"
    type: Literal["image"]
    source: ImageSource
    cache_control: Any = None  # changes nothing here

    @property
    def url(self) -> str:
        return f"data:{self.source.media_type};base64,{self.source.data}"


def images_in(value: Any, place: str) -> Iterator[tuple[str, ImageFields]]:
    """The images of a field, in order, each with the name of the field that has it in base64."""
    if isinstance(value, ImageFields):
        yield f"{place}.{value.PLACE}", value
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from images_in(each, f"{place}.{index}")
    elif isinstance(value, Fields):
        for name in type(value).model_fields:
            yield from images_in(getattr(value, name), f"{place}.{name}")


def without(kind: str) -> Json:
    """The schema of a message whose content has no parts of a type."""
    other = where(type={"not": {"const": kind}})
    return where(content=either({"type": ["string", "null"]}, {"type": "array", "items": other}))
