"""A linear layer whose weight lies in the layout that oneDNN multiplies fastest on this CPU (a "prepacked" weight).

torch stores weights row by row, and oneDNN reorders them in every product. A packed weight is read as it lies: the
products are the same, up to the order of their sums. A float32 weight may be packed in 16 bits if all its numbers are
bfloat16's, as those of most checkpoints are: loops multiply it in float32, and read half as much (`by_loops`). They
multiply a bfloat16 weight, too, where oneDNN packs none and torch computes token by token. Knows no model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from lade.facts.fingerprint import DTYPE, SERIAL
from lade.weights.blockloops import MULTIPLY_BLOCKS, multiplied_by_blocks
from lade.weights.blocks import blocks_of, can_lie_in_blocks, dense, is_packed, laid_in_blocks
from lade.weights.onednn import packed, packs, product

ROUNDING = 8  # times the dtype's rounding that two ways to sum one product may differ
ORIGIN = "lade_origin"  # where a packed layer keeps its `Origin`
SHORT = "lade_short"  # where a copy of one tells whether its weight is to lie in 16 bits
# Elements of the smallest weight that is packed: a call of oneDNN takes 15 µs, and torch multiplies small weights in
# float32 without it. One thread of an AMD EPYC with AVX-512, 1 to 32 rows: 1.3 to 1.6 times as fast at 512 x 256 in
# float32 and 0.5 to 1.0 times at 256 x 256; in bfloat16 1.06 to 1.12 times at 128 x 128.
LEAST = {torch.float32: 1 << 17, torch.bfloat16: 1 << 14, torch.float16: 1 << 14}
BLOCKS = "lade_blocks"  # where the parameter of a weight that loops multiply keeps its memory
KEPT = "lade_kept"  # and what holds that, whatever becomes of the parameter
MOST_LOOPED = 256  # tokens that loops multiply with one of oneDNN's; of more, to make it float32 first takes less time
_serials = itertools.count()


@dataclass(frozen=True, slots=True)
class Origin:
    """What a layer's plain weight was.

    Attributes:
        requires_grad: whether gradients were computed for it.
        tied: the weight itself where another module holds it, too, as an embedding does; else `None`.
        version: its version counter; once somebody has written to it, the packed weight is of no use.
        dtype: its own, and that of states.
    """

    requires_grad: bool
    tied: nn.Parameter | None
    version: int
    dtype: torch.dtype

    @classmethod
    def of(cls, weight: Any, tied: bool) -> Origin:
        return cls(weight.requires_grad, weight if tied else None, _version(weight), weight.dtype)


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
        if self._is_packed(weight) and dtype_of(self) is input.dtype and not self._needs_plain(input, bias):
            return PackedProduct(weight, bias)(input)
        return linear(input, plain_weight(self), bias)

    def _is_packed(self, weight: Any) -> bool:
        """Whether a weight is packed, and no other module has written to it since."""
        origin: Origin = self.__dict__[ORIGIN]
        return is_packed(weight) and (origin.tied is None or _version(origin.tied) == origin.version)

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
        tied, short = self.__dict__[ORIGIN].tied is not None, lies_short(self)
        unpack(self)
        method(self, *args, **kwargs)
        pack(self, tied, short)

    def __getstate__(self) -> dict[str, Any]:
        """Of copies and pickles."""
        parameters = self._parameters | {"weight": plain_weight(self)}
        return self.__dict__ | {"_parameters": parameters, SHORT: lies_short(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__class__: Any = nn.Linear
        tied, short = self.__dict__.pop(ORIGIN).tied is not None, self.__dict__.pop(SHORT)
        pack(self, tied, short)


def _version(weight: torch.Tensor) -> int:
    return -1 if weight.is_inference() else weight._version


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """What a packed layer computes.

    Attributes:
        weight: [out, in], packed.
        bias: [out], or `None`.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        """[..., out] of [..., in]."""
        blocks = getattr(self.weight, BLOCKS, None)
        if blocks is None:
            return product(input, self.weight, self.bias)
        return by_loops(input, self.weight, blocks, self.bias)


def by_loops(input: torch.Tensor, weight: torch.Tensor, blocks: Any, bias: torch.Tensor | None) -> torch.Tensor:
    """Products with a weight in 16 bits, and its memory; by torch where there are no loops, or for many tokens."""
    lines, size = weight.shape
    fits = bias is None or bias.dtype is input.dtype  # for another one torch has its own word
    few = input.numel() <= MOST_LOOPED * size or not weight.is_mkldnn
    if MULTIPLY_BLOCKS.ready and fits and few and input.numel():
        states = input.detach() if input.requires_grad else input
        return multiplied_by_blocks(states.contiguous(), blocks, lines, bias)
    return linear(input, dense(weight, input.dtype), bias)


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
    if weight is None or not is_packed(weight):  # somebody has given the layer another one
        return weight
    if origin.tied is not None:
        return origin.tied
    return nn.Parameter(dense(weight, origin.dtype), requires_grad=origin.requires_grad)


def lies_short(layer: nn.Module) -> bool:
    """Whether its weight is packed in 16 bits for loops."""
    return isinstance(layer, PackedLinear) and hasattr(layer._parameters["weight"], BLOCKS)


def dtype_of(layer: nn.Module) -> torch.dtype:
    """Of a linear layer's states."""
    holder: Any = layer.__dict__[ORIGIN] if isinstance(layer, PackedLinear) else layer.weight
    found: torch.dtype = holder.dtype
    return found


def can_pack(layer: nn.Module, short: bool = False) -> bool:
    """Whether a layer is plain and on the CPU, large enough, and of a dtype that oneDNN packs.

    Args:
        short: weights of any size may be packed that loops multiply (`is_short`).
    """
    if type(layer) is not nn.Linear or "forward" in layer.__dict__:  # a patch
        return False
    weight: Any = layer.weight
    if type(weight) not in (torch.Tensor, nn.Parameter) or weight.is_mkldnn or weight.device.type != "cpu":
        return False
    return _may_pack(weight) or (short and is_short(weight))


def _may_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN packs a weight, and gains by it."""
    return packs(weight.dtype) and weight.numel() >= LEAST[weight.dtype]


@torch.no_grad()
def pack(layer: nn.Module, tied: bool = False, short: bool = False) -> bool:
    """Pack a layer's weight in place. Returns whether it is packed: not where that gives other products.

    Args:
        tied: whether another module holds the weight, too.
        short: whether a weight is packed in 16 bits for loops where it can be (`is_short`).
    """
    if not can_pack(layer, short):
        return False
    plain: Any = layer.weight
    weight = short_parameter(plain.detach()) if short else None
    if weight is None:
        if not _may_pack(plain):
            return False
        weight = _parameter(packed(plain.detach()))
    if not _agree(plain, weight):
        return False
    layer.__dict__[ORIGIN] = Origin.of(plain, tied)
    layer._parameters["weight"] = weight
    layer.__class__ = PackedLinear
    return True


def is_short(weight: torch.Tensor) -> bool:
    """Whether a plain weight may be packed in 16 bits for loops on this machine, unless oneDNN chooses otherwise.

    So may a float32 one whose numbers are all bfloat16's, and one of bfloat16 where oneDNN packs none.
    """
    return _halved(weight) is not None


def _halved(weight: torch.Tensor) -> torch.Tensor | None:
    """Such a weight in bfloat16; `None` of others."""
    if not can_lie_in_blocks(weight):
        return None
    if weight.dtype is torch.bfloat16:
        return None if packs(torch.bfloat16) else weight
    if weight.dtype is not torch.float32:
        return None
    found = weight.bfloat16()
    return found if torch.equal(found.float(), weight) else None


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


def short_parameter(weight: torch.Tensor) -> nn.Parameter | None:
    """A weight in 16 bits; `None` where that loses anything, or loops cannot read it."""
    half = _halved(weight)
    lying = None if half is None else laid_in_blocks(half)
    if lying is None:
        return None
    found = _parameter(lying)
    setattr(found, BLOCKS, blocks_of(found))
    setattr(found, KEPT, found.detach())
    setattr(found, DTYPE, weight.dtype)
    return found


def _agree(plain: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two rows have the same products with both, up to rounding."""
    rows = torch.linspace(-1, 1, 2 * plain.shape[1]).view(2, -1).to(plain.dtype)
    differences = (PackedProduct(other, None)(rows) - linear(rows, plain)).abs().float()
    largest = rows.float().norm(dim=1)[:, None] * torch.linalg.vector_norm(plain, dim=1, dtype=torch.float32)
    return bool((differences <= ROUNDING * torch.finfo(plain.dtype).eps * largest).all())
