"""A device from its name, checked by using it: a name alone tells too little of what this machine has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lade.base.shown import first_line, invalid

if TYPE_CHECKING:
    import torch

ABSENT = "torch has no such backend here"


def as_device(device: str | int | torch.device) -> torch.device:
    """A device from its name; ValueError where this machine has no such device."""
    import torch

    if not isinstance(device, str | int | torch.device):
        raise invalid("device", "a device of this machine, such as 'cpu'", device)
    try:
        found = torch.device(device)
        torch.zeros(1, device=found).item()  # fails where the device is not here or, as meta, holds nothing
    except (
        AssertionError,
        ImportError,
        OverflowError,
        RuntimeError,
        ValueError,
    ) as error:  # an assertion: built without the backend
        given = device if isinstance(device, int) else str(device)
        raise invalid("device", f"a device of this machine ({_reason(error)})", given) from error
    return found


def _reason(error: Exception) -> str:
    """One sentence: torch's own may list all of its backends."""
    if isinstance(error, ImportError | NotImplementedError):
        return ABSENT
    return first_line(error).partition(". ")[0].removesuffix(".")
