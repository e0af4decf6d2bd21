"""Fixtures of the tests of packed weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from inblocks import ONEDNN, OWN, own_blocks

from lade.weights.onednn import packs


@pytest.fixture(scope="module", params=[ONEDNN, OWN])
def layout(request: pytest.FixtureRequest) -> Iterator[str]:
    """Whose blocks weights lie in. Of a module, as properties want."""
    if request.param == OWN:
        with own_blocks():
            yield OWN
    elif packs(torch.bfloat16):
        yield ONEDNN
    else:
        pytest.skip("oneDNN packs no bfloat16 on this machine")
