"""From base64 to pixels, by Pillow. Knows no model and no messages."""

from __future__ import annotations

import binascii
import warnings
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO

from PIL import Image, ImageOps, UnidentifiedImageError

from lade.applications.images.errors import ImageError
from lade.base.shown import one_line, shown

MOST_IMAGES = 32
MOST_PIXELS = 50_000_000  # of all images of a prompt together, each of which takes three bytes
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")


def decoded(given: Sequence[tuple[str, str]]) -> list[Image.Image]:
    """Images in RGB, turned as their EXIF orientation says; of an animation the first picture. Not for several threads
    at once.

    Args:
        given: for each image its name, and its file in base64.

    Raises:
        ImageError: these are too many images or pixels, or one of them cannot be read.
    """
    if len(given) > MOST_IMAGES:
        raise ImageError("messages", f"have at most {MOST_IMAGES} images, got {len(given)}")
    opened, pixels = list[tuple[str, Image.Image]](), 0
    for place, encoded in given:
        image = _opened(place, encoded)
        opened.append((place, image))
        pixels += image.width * image.height
        if pixels > MOST_PIXELS:
            raise _too_large(place, pixels)
    return [_read(place, image) for place, image in opened]


def media_type(place: str, encoded: str) -> str:
    """That of an image's file, as of `decoded`."""
    return str(Image.MIME[str(_opened(place, encoded).format)])


def _opened(place: str, encoded: str) -> Image.Image:
    """An image of which the header alone is read."""
    try:
        found = b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(place, f"be an image in base64, got {shown(encoded)}") from error
    with _readable(place):
        return Image.open(BytesIO(found), formats=FORMATS)


def _read(place: str, image: Image.Image) -> Image.Image:
    with _readable(place), image:
        return ImageOps.exif_transpose(image).convert("RGB")


@contextmanager
def _readable(place: str) -> Iterator[None]:
    """Whatever Pillow says about an image becomes one error."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="PIL")
            yield
    except Image.DecompressionBombError as error:
        raise _too_large(place, "more") from error
    except UnidentifiedImageError as error:
        raise _broken(place, "another file") from error
    except Exception as error:  # each of its decoders has its own
        raise _broken(place, f"one that does not load ({one_line(error)})") from error


def _too_large(place: str, pixels: int | str) -> ImageError:
    allowed = f"such that all images have at most {MOST_PIXELS} pixels together"
    return ImageError(place, f"be {allowed}, got {pixels}")


def _broken(place: str, given: str) -> ImageError:
    return ImageError(place, f"be a whole PNG, JPEG, WebP or GIF image, got {given}")
