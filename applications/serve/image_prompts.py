"""Prompts with images for requests: one at a time, and errors of the API. Knows no request."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lade.applications.images.errors import ImageError
from lade.applications.images.inputs import ImageInputs
from lade.applications.images.prompt import Prompt
from lade.applications.serve.errors import BAD_REQUEST, APIError
from lade.applications.serve.fields import Json
from lade.applications.serve.openmp import release_threads
from lade.applications.serve.rendered import rendered

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ImagePrompts(ImageInputs):
    """Encodes prompts with images. For any thread, one at a time, since pixels take memory.

    Args:
        processor, model: as of `ImageInputs`.
    """

    def __init__(self, processor: Any, model: PreTrainedModel) -> None:
        super().__init__(processor, model)
        self._lock = threading.Lock()

    def encoded(
        self,
        messages: Sequence[Json],
        images: Sequence[tuple[str, str]],
        tools: Sequence[Json],
        options: Mapping[str, Any],
    ) -> Prompt:
        """The prompt of a conversation.

        Args:
            messages: with the places of images as parts `{"type": "image"}`.
            images: for each place the name of its field, and what this has in base64.
            tools, options: as of `rendered`.

        Raises:
            APIError: an image cannot be read, or the model's template or processor does not take the conversation.
        """

        def text(owner: Any) -> str:
            return rendered(owner, None, messages, tools, options, in_parts=True)

        with self._lock:
            try:
                return self.prompt([messages, tools, options], images, text)
            except ImageError as error:
                raise APIError(BAD_REQUEST, str(error), error.place) from error
            finally:
                release_threads()  # else the engine's may sleep at barriers from now on
