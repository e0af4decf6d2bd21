"""Builds of the kernel for sm_90a without a device: registers, stack and shared memory of every size of the table.

Needs triton's own compiler alone, so TRITON_INTERPRET must not be set.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lade.kernels import kernel
from lade.kernels.blocks import Blocks, blocks
from lade.kernels.launch import constants
from lade.kernels.rows import Rules

HEAD_SIZES = (64, 80, 96, 128, 256)
GROUPS = range(1, 17)
NODES = (1, 4, 16, 32, 64, 512)  # of the longest row
HOPPER = GPUTarget("cuda", 90, 32)
LARGEST_SHARED = 227 * 1024  # bytes of a program on sm_90
TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float16: "fp16"}
RULES = {
    "full": Rules(1.0),
    "chunk": Rules(1.0, chunk=9),
    "all": Rules(1.0, window=9, cap=1.0, sinks=torch.zeros(1)),
}
POINTERS = ("query", "key", "value", "out", "weights", "sinks", "table", "trees")
FLOATS = ("inner", "factor")
ALIGNED = (*POINTERS, *(f"{states}_{axis}" for states in POINTERS[:3] for axis in ("head", "token")))


@dataclass(frozen=True)
class Build:
    """One program: what it is compiled for, and what it takes."""

    dtype: str
    size: int
    rows: int
    rules: str
    partial: bool
    registers: int
    stack: int
    shared: int

    @property
    def holds(self) -> bool:
        """Whether it keeps all numbers in registers, and fits on a multiprocessor."""
        return self.stack == 0 and self.shared <= LARGEST_SHARED


def chosen(dtype: torch.dtype, size: int) -> list[Blocks]:
    """Every program that the table chooses for some group and number of nodes, by rows."""
    found = {blocks(dtype, size, group, nodes) for group in GROUPS for nodes in NODES}
    return sorted(found, key=lambda block: block.rows)


def compiled(
    dtype: torch.dtype, size: int, block: Blocks, rules: str = "full", partial: bool = True, target: GPUTarget = HOPPER
) -> Any:
    """The kernel for heads of one type and size."""
    fixed = constants(size, size, block, RULES[rules], parts=1 + partial) | {"CHAINED": target is HOPPER}
    types = {name: _type(name, dtype, partial) for name in kernel.attend.arg_names}
    return program(kernel.attend, types, fixed, ALIGNED, target, num_warps=block.warps)


def program(
    function: Any, types: Mapping[str, str], fixed: Mapping[str, Any], aligned: Sequence[str],
    target: GPUTarget = HOPPER, **options: Any,
) -> Any:  # fmt: skip
    """A kernel, compiled.

    Args:
        types: of its arguments, by name.
        fixed: what it is compiled for.
        aligned: names of arguments that 16 divides.
    """
    signature = {**types, **dict.fromkeys(fixed, "constexpr")}
    places = {name: place for place, name in enumerate(function.arg_names)}
    attributes = {(places[name],): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(fn=function, signature=signature, constexprs=dict(fixed), attrs=attributes)
    return triton.compile(source, target=target, options=options)


def _type(name: str, dtype: torch.dtype, partial: bool) -> str:
    if name in ("table", "trees"):
        return "*i64"
    if name == "weights" or (name == "out" and partial):
        return "*fp32"
    if name in POINTERS:
        return f"*{TYPES[dtype]}"
    return "fp32" if name in FLOATS else "i32"


def built(dtype: torch.dtype, size: int, block: Blocks, rules: str = "full", partial: bool = True) -> Build:
    """Compile one program and read what it takes."""
    found = compiled(dtype, size, block, rules, partial)
    usage = resources(found.asm["cubin"])
    names = TYPES[dtype], size, block.rows, rules, partial
    return Build(*names, usage["REG"], usage["STACK"], found.metadata.shared)


def resources(cubin: bytes) -> Mapping[str, int]:
    """Registers and bytes per thread of a kernel, as `cuobjdump -res-usage` of triton's wheel tells."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}


def every() -> Iterator[tuple[torch.dtype, int, Blocks, str, bool]]:
    """All that is built: each head size with every program of it, under all rules and under none; chunks, and keys that
    are not split, with the largest alone."""
    for dtype in TYPES:
        for size in HEAD_SIZES:
            programs = chosen(dtype, size)
            yield from ((dtype, size, block, "all", True) for block in programs)
            yield dtype, size, programs[-1], "chunk", True
            yield from ((dtype, size, block, "full", True) for block in programs)
            yield dtype, size, programs[-1], "full", False


def told(dtype: torch.dtype, size: int, block: Blocks, rules: str, partial: bool) -> dict[str, Any]:
    """What a program takes, by name."""
    build = built(dtype, size, block, rules, partial)
    return {**asdict(build), "holds": build.holds}
