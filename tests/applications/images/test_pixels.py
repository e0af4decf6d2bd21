"""Images from base64: the same pixels whatever the file's kind, and one error whatever is wrong with it."""

import base64
import struct
import warnings
import zlib
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from seeing import encoded, picture

from lade.applications.images.errors import ImageError
from lade.applications.images.pixels import MOST_IMAGES, MOST_PIXELS, decoded, media_type

IMAGE = picture()


def read(*images: str) -> list[Image.Image]:
    return decoded([(f"field.{index}", each) for index, each in enumerate(images)])


def png(width: int, height: int) -> str:
    """A file whose header tells of this size; of its pixels there are none."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(bytes(99))), chunk(b"IEND", b"")]
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_files_without_loss_have_the_pixels(kind: str) -> None:
    (found,) = read(encoded(IMAGE, kind, **({"lossless": True} if kind == "WEBP" else {})))
    assert (found.mode, found.size) == ("RGB", IMAGE.size)
    assert found.tobytes() == IMAGE.tobytes()


@pytest.mark.parametrize("kind", ["JPEG", "GIF"])
def test_other_files_have_the_size(kind: str) -> None:
    (found,) = read(encoded(IMAGE, kind))
    assert (found.mode, found.size) == ("RGB", IMAGE.size)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "I;16"])
def test_all_modes_become_rgb(mode: str) -> None:
    (found,) = read(encoded(IMAGE.convert("L" if mode == "I;16" else "RGB").convert(mode)))
    assert (found.mode, found.size) == ("RGB", IMAGE.size)


def test_an_image_is_turned_as_it_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    (found,) = read(encoded(IMAGE, exif=exif))
    assert found.size == IMAGE.size[::-1]
    assert found.tobytes() == IMAGE.transpose(Image.Transpose.ROTATE_270).tobytes()


def test_the_first_picture_of_an_animation() -> None:
    still, moving = IMAGE.convert("P"), picture(1).convert("P")
    (found,) = read(encoded(still, "GIF", save_all=True, append_images=[moving]))
    (alone,) = read(encoded(still, "GIF"))
    assert found.tobytes() == alone.tobytes()


BROKEN = "must be a whole PNG, JPEG, WebP or GIF image, got"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", f"{BROKEN} another file"),
        ("!", "must be an image in base64, got '!'"),
        ("abc", "must be an image in base64, got 'abc'"),
        ("é", "must be an image in base64, got"),
        (base64.b64encode(b"<svg/>").decode(), f"{BROKEN} another file"),
        (encoded(IMAGE, "BMP"), f"{BROKEN} another file"),
        (encoded(IMAGE, "TIFF"), f"{BROKEN} another file"),
        (encoded(IMAGE)[:400], f"{BROKEN} one that does not load"),
        (encoded(picture(0, (99, 99)), "JPEG")[:2000], f"{BROKEN} one that does not load"),
        (png(9, 9), f"{BROKEN} one that does not load"),
        (png(MOST_PIXELS // 1000, 1001), f"at most {MOST_PIXELS} pixels together, got 50050240"),
        (png(10_000, 10_000), f"at most {MOST_PIXELS} pixels together, got 100000240"),
        (png(1 << 20, 1 << 20), f"at most {MOST_PIXELS} pixels together, got more"),
    ],
)
def test_what_is_no_image_is_named(data: str, message: str, recwarn: pytest.WarningsRecorder) -> None:
    """Before pixels are decoded, where these are too many, and without a warning of Pillow's."""
    warnings.simplefilter("always")
    with pytest.raises(ImageError) as refused:
        read(encoded(IMAGE), data)
    assert refused.value.place == "field.1"
    assert str(refused.value).startswith("field.1 must be ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400
    assert not recwarn.list


FILES = [base64.b64decode(encoded(IMAGE, kind)) for kind in ("PNG", "JPEG", "WEBP", "GIF")]


@settings(max_examples=200)
@given(st.sampled_from(FILES), st.data())
def test_damaged_files_are_images_or_refused(file: bytes, data: st.DataObject) -> None:
    """Whatever bytes are changed, and wherever the file ends; a warning would be an error."""
    places = st.integers(0, len(file) - 1)
    changed = bytearray(file)
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=4)):
        changed[place] = value
    cut = bytes(changed[: data.draw(places | st.just(len(file)))])
    with suppress(ImageError):  # and nothing else
        assert [found.mode for found in read(base64.b64encode(cut).decode())] == ["RGB"]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_the_type_of_a_file(kind: str) -> None:
    assert media_type("field", encoded(IMAGE, kind)) == f"image/{kind.lower()}"


def test_images_are_bounded_together() -> None:
    assert len(read(*[encoded(IMAGE)] * MOST_IMAGES)) == MOST_IMAGES
    with pytest.raises(ImageError, match=f"messages must have at most {MOST_IMAGES} images, got {MOST_IMAGES + 1}"):
        read(*[encoded(IMAGE)] * (MOST_IMAGES + 1))
    with pytest.raises(ImageError, match=r"field\.1 .* got 50000005"):
        read(png(5_000, 5_000), png(5_000_001, 5))
