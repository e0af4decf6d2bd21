"""A linear layer whose weight lies in the layout that oneDNN multiplies fastest on this CPU (a "prepacked" weight).

torch stores weights row by row, and oneDNN reorders them in every product. A packed weight is read as it lies: the
products are the same, up to the order of their sums. Knows no model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from lade.facts.fingerprint import SERIAL
from lade.facts.products import told

ROWS = 64  # of the products, as oneDNN asks; its layouts for 16 to 512 are equally fast at 1 to 1,024 rows
ALONE: Any = ("none", [], "")  # a product with no function behind it
ROUNDING = 8  # times the dtype's rounding that two ways to sum one product may differ
ORIGIN = "lade_origin"  # where a packed layer keeps its `Origin`
# Elements of the smallest weight that is packed: a call of oneDNN takes 15 µs, and torch multiplies small weights in
# float32 without it. One thread of an AMD EPYC with AVX-512, 1 to 32 rows: 1.3 to 1.6 times as fast at 512 x 256 in
# float32 and 0.5 to 1.0 times at 256 x 256; in bfloat16 1.06 to 1.12 times at 128 x 128.
LEAST = {torch.float32: 1 << 17, torch.bfloat16: 1 << 14, torch.float16: 1 << 14}
_ops: Any = torch.ops.mkldnn
_serials = itertools.count()


@dataclass(frozen=True, slots=True)
class Origin:
    """What a layer's plain weight was.

    Attributes:
        requires_grad: whether gradients were computed for it.
        tied: the weight itself where another module holds it, too, as an embedding does; else `None`.
        version: its version counter; once somebody has written to it, the packed weight is of no use.
    """

    requires_grad: bool
    tied: nn.Parameter | None
    version: int

    @classmethod
    def of(cls, weight: Any, tied: bool) -> Origin:
        return cls(weight.requires_grad, weight if tied else None, _version(weight))


class PackedLinear(nn.Linear):
    """A linear layer that only computes: its weight takes no gradients, and nothing can write to it.

    `pack` makes one of an `nn.Linear` and `unpack` turns it back, in place: hooks, names and whatever refers to the
    layer stay. Its checkpoint is that of the plain layer. Moved, cast or copied, it is packed anew where it can be.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., out] of [..., in].

        Raises:
            RuntimeError: the layer is trained.
        """
        weight: Any = self._parameters["weight"]
        bias = self._parameters["bias"]
        if self._is_packed(weight) and weight.dtype is input.dtype and not self._needs_plain(input, bias):
            return _product(input, weight, bias)
        return linear(input, plain_weight(self), bias)

    def _is_packed(self, weight: Any) -> bool:
        """Whether a weight is packed, and no other module has written to it since."""
        origin: Origin = self.__dict__[ORIGIN]
        return weight.is_mkldnn and (origin.tied is None or _version(origin.tied) == origin.version)

    def _needs_plain(self, input: torch.Tensor, bias: torch.Tensor | None) -> bool:
        """Whether more than a product is asked for: autocast, or gradients."""
        if torch.is_grad_enabled():
            if self.training:
                raise RuntimeError("weights must be plain for training (lade.unpack_weights), got packed ones")
            if input.requires_grad or (bias is not None and bias.requires_grad):
                return True
        return torch.is_autocast_enabled("cpu")

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        weight = plain_weight(self)
        destination[f"{prefix}weight"] = weight if keep_vars else weight.detach()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._as_plain(nn.Linear._load_from_state_dict, *args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """What moves and casts modules."""
        self._as_plain(nn.Linear._apply, *args, **kwargs)
        return self

    def _as_plain(self, method: Any, *args: Any, **kwargs: Any) -> None:
        tied = self.__dict__[ORIGIN].tied is not None
        unpack(self)
        method(self, *args, **kwargs)
        pack(self, tied)

    def __getstate__(self) -> dict[str, Any]:
        """Of copies and pickles."""
        return self.__dict__ | {"_parameters": self._parameters | {"weight": plain_weight(self)}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__class__: Any = nn.Linear
        pack(self, self.__dict__.pop(ORIGIN).tied is not None)


def _version(weight: torch.Tensor) -> int:
    return -1 if weight.is_inference() else weight._version


def _product(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    found: torch.Tensor = _ops._linear_pointwise.default(input, weight, bias, *ALONE)
    return found


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """What a packed layer computes."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        """[..., out] of [..., in]."""
        return _product(input, self.weight, self.bias)


def product_of(layer: nn.Module, now: bool = False) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What a linear layer computes with its present weight and bias, without what modules do around it.

    `None` for layers of other classes, and where somebody may write to a packed one's plain weight.

    Args:
        now: whether that is asked at once, and nobody can write before; what was written until now counts.
    """
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    if type(layer) is nn.Linear and weight is not None:
        return lambda input: linear(input, weight, bias)
    if type(layer) is PackedLinear and weight is not None and layer._is_packed(weight):
        return PackedProduct(weight, bias) if now or layer.__dict__[ORIGIN].tied is None else None
    return None


def plain_weight(layer: PackedLinear) -> Any:
    """The parameter of the plain layer."""
    weight, origin = layer._parameters["weight"], layer.__dict__[ORIGIN]
    if weight is None or not weight.is_mkldnn:  # somebody has given the layer another one
        return weight
    if origin.tied is not None:
        return origin.tied
    return nn.Parameter(weight.to_dense(), requires_grad=origin.requires_grad)


def packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs weights of a dtype on this machine."""
    build: Any = torch.backends.mkldnn
    if not build.is_available() or not hasattr(_ops, "_reorder_linear_weight"):
        return False
    return dtype is torch.float32 or told(dtype) is True


def can_pack(layer: nn.Module) -> bool:
    """Whether a layer is plain and on the CPU, large enough, and of a dtype that oneDNN packs."""
    if type(layer) is not nn.Linear or "forward" in layer.__dict__:  # a patch
        return False
    weight: Any = layer.weight
    if type(weight) not in (torch.Tensor, nn.Parameter) or weight.is_mkldnn:
        return False
    return weight.device.type == "cpu" and packs(weight.dtype) and weight.numel() >= LEAST[weight.dtype]


@torch.no_grad()
def pack(layer: nn.Module, tied: bool = False) -> bool:
    """Pack a layer's weight in place. Returns whether it is packed: not where that gives other products.

    Args:
        tied: whether another module holds the weight, too.
    """
    if not can_pack(layer):
        return False
    plain: Any = layer.weight
    weight = packed(plain.detach())
    if not _agree(plain, weight):
        return False
    layer.__dict__[ORIGIN] = Origin.of(plain, tied)
    layer._parameters["weight"] = _parameter(weight)
    layer.__class__ = PackedLinear
    return True


def packed(weight: torch.Tensor) -> torch.Tensor:
    """The same weight in oneDNN's layout."""
    found: torch.Tensor = _ops._reorder_linear_weight.default(weight, ROWS)
    return found


def _parameter(weight: torch.Tensor) -> nn.Parameter:
    found = nn.Parameter(weight, requires_grad=False)
    setattr(found, SERIAL, next(_serials))
    return found


def unpack(layer: nn.Module) -> bool:
    """Turn a packed layer into the plain one. Returns whether it was packed."""
    if not isinstance(layer, PackedLinear):
        return False
    layer._parameters["weight"] = plain_weight(layer)
    layer.__class__ = nn.Linear
    del layer.__dict__[ORIGIN]
    return True


def _agree(plain: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two rows have the same products with both, up to rounding."""
    rows = torch.linspace(-1, 1, 2 * plain.shape[1]).view(2, -1).to(plain.dtype)
    differences = (_product(rows, other, None) - linear(rows, plain)).abs().float()
    largest = rows.float().norm(dim=1)[:, None] * torch.linalg.vector_norm(plain, dim=1, dtype=torch.float32)
    return bool((differences <= ROUNDING * torch.finfo(plain.dtype).eps * largest).all())
