"""The error about an image, or about a conversation that has images."""

from __future__ import annotations


class ImageError(ValueError):
    """What is wrong, in one line that begins with its place.

    Attributes:
        place: the name that the image was given with, or the field that is wrong.
    """

    def __init__(self, place: str, told: str) -> None:
        super().__init__(f"{place} must {told}")
        self.place = place
