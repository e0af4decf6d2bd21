"""Commands that several processes run together, started by torchrun: rank 0 speaks, the others are silent."""

from __future__ import annotations

import os
import sys

import click


def join_run() -> int:
    """Join the processes that torchrun has started. Returns their number.

    Raises:
        click.UsageError: torchrun has not started this process.
    """
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        raise click.UsageError("torchrun must start the processes: torchrun --nproc-per-node 4 ...")
    import torch

    from lade.distributed.group import join

    size = int(os.environ["WORLD_SIZE"])
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if size > 1:
        join(size)
    if os.environ["RANK"] != "0":
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until this process ends
    return size
