"""OpenMP's threads, which torch computes with: each thread of Python that computes has some of its own.

Where these are more than the cores, libgomp's do not spin at a barrier but sleep, which takes a small model three times
as long: lade-code-8M wrote 97 tokens/s in place of 274 in a second thread, on two cores. So the thread that loads the
model lets go of them before another one decodes, and so does each thread that submits requests or has read images,
whatever it computed.
"""

from __future__ import annotations

import ctypes

SOFT = 1  # omp_pause_soft: threads end, settings stay


def release_threads() -> None:
    """End the OpenMP threads of this thread, which gets new ones where it computes again.

    Nothing happens where the runtime has no `omp_pause_resource_all` (OpenMP 5.0).
    """
    try:
        pause = ctypes.CDLL(None).omp_pause_resource_all
    except (AttributeError, OSError, TypeError):  # not among the process's symbols; Windows has no table of them
        return
    pause(SOFT)
