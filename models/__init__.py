"""Loading models, what differs per model family, and the small pretrained models that ship; knows no application."""

from lade.models.load import load
from lade.models.pull import pull

__all__ = ["load", "pull"]
