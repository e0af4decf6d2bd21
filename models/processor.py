"""Loading the processor of a model that reads images: what makes the model's inputs of texts and images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lade.base.importing import IMPORTING
from lade.models.load import here, model_source
from lade.models.whole import whole

if TYPE_CHECKING:
    from transformers import ProcessorMixin

FILES = ("processor_config.json", "preprocessor_config.json")


def load_processor(
    path_or_name: str | Path | None = None, cache_dir: str | Path | None = None
) -> ProcessorMixin | None:
    """Load the processor of a model, with a tokenizer of its own.

    Args:
        path_or_name, cache_dir: as of `lade.models.load`.

    Returns:
        The processor, or `None` if the model has none that takes images.

    Raises:
        ValueError: `path_or_name` is wrong, or a file is damaged.
        FileNotFoundError: the path has no model, or the model is not pulled.
        OSError: the hub does not have the name, or a file is not there.
        ImportError: a package is missing that the processor needs.
    """
    source = here(model_source(path_or_name), cache_dir)
    with IMPORTING:
        from transformers import AutoProcessor, ProcessorMixin
        from transformers.utils import has_file

    with whole(source, "processor"):
        if not any(has_file(source, name, cache_dir=cache_dir) for name in FILES):
            return None
        found = AutoProcessor.from_pretrained(source, cache_dir=cache_dir)
    reads = isinstance(found, ProcessorMixin) and getattr(found, "image_processor", None) is not None
    return found if reads else None
