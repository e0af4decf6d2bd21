"""The forward of a model of LLaMA's kind over packed rows: its products, and loops for all that stands between them.

transformers' code makes some sixty calls per layer, each of which takes microseconds; this makes some twenty.
T nodes of all rows, A asked ones, M hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch.nn.functional import silu

from lade.base.bits import bits_of
from lade.target.attention import packed
from lade.target.cache import TreeCache
from lade.target.choice import choice_among, timed
from lade.target.fused.angles import Angles
from lade.target.fused.attention import Forward, KindRows
from lade.target.fused.linear import FewBlocks, FewTokens
from lade.target.fused.loops import NORMALISE, ROTATE
from lade.target.fused.plan import Norm, Plan, plan_of
from lade.target.fused.stack import COMPUTE
from lade.target.fused.stacked import Stack
from lade.target.fused.watch import SHARES, is_unpatched
from lade.target.groups import PackedGroup
from lade.target.layers import TreeLayer
from lade.target.looped import Looped
from lade.target.masks import MaskKind, TreeMasks
from lade.target.rowattention import PackedForward
from lade.weights.packed import PackedProduct, product_of


class Way(NamedTuple):
    """How layers are computed."""

    name: str


PRODUCTS, ONE_CALL = Way("products"), Way("one call")  # a call per product and per loop, or one for all layers
SAMPLES = 5  # timed forwards of each


class FusedDecoder:
    """Computes what a model computes, as long as nobody changes or patches the model.

    Args:
        plan: of the model.
        masks: of the target.

    Attributes:
        angles: of positions.
        stack: computes all layers in one call; `None` where the model has layers for which there is none.
        one_call: whether it does wherever it can; `None`: where that takes less time.
    """

    def __init__(self, model: Any, plan: Plan, cache: TreeCache, masks: TreeMasks) -> None:
        self.model, self.plan, self.cache, self.masks = model, plan, cache, masks
        self._kinds = kinds_of_layers(model, masks.kinds)
        self.angles = Angles(plan.rotary, plan.dtype)
        self.stack = Stack.of(plan, cache, len(masks.each_kind))
        self.one_call: bool | None = None
        self._known_head: FewBlocks | None = None
        self._holds, self._turn = False, 0
        self._share: int | None = None  # of the model, that this forward looks at

    def fits(self, undisturbed: bool = False) -> bool:
        """Whether the model is as it was, and no more than its forward is asked for.

        Args:
            undisturbed: whether a look at a share of the model suffices (`lade.engine.protocols.Target`).
        """
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return False
        self._turn = (self._turn + 1) % SHARES
        self._share = self._turn if undisturbed and self._holds else None
        self._holds = self.plan.holds(self.model, self._share)
        return self._holds

    def logits(
        self,
        forward: Forward,
        ids: torch.Tensor,
        positions: torch.Tensor,
        asked: torch.Tensor | None,
    ) -> Any:
        """[1, A, V] logits of a forward that the cache is prepared for.

        Args:
            ids, positions: [1, T]
            asked: [A] nodes whose logits are wanted; `None` for all.
        """
        if not self.model._forward_pre_hooks:
            return self._logits(forward, ids, positions, asked)
        with packed(forward):
            for hook in self.model._forward_pre_hooks.values():
                hook(self.model, (), {"input_ids": ids})
            found = self._logits(forward, ids, positions, asked)
            for hook in self.model._forward_hooks.values():
                hook(self.model, (), found)
            return found

    def _logits(self, forward: Forward, ids: torch.Tensor, positions: torch.Tensor, asked: torch.Tensor | None) -> Any:
        return self._head()(self._states(ids, self._rows(forward, positions), asked))

    def _states(self, ids: torch.Tensor, rows: Sequence[KindRows], asked: torch.Tensor | None) -> torch.Tensor:
        """[1, A, M] that the head takes, computed in the faster way, or in one that is tried."""
        stack, wanted = self.stack, self.one_call
        if stack is None or wanted is False or not (wanted or COMPUTE.ready) or not stack.fits(rows[0], self._share):
            return self._by_products(ids, rows, asked)
        if wanted:
            return self._in_one_call(stack, ids, rows, asked)
        choice = choice_among((*stack.shape_of(rows[0]), torch.get_num_threads()), (PRODUCTS, ONE_CALL), SAMPLES)
        way = choice.best or choice.next()
        compute = partial(self._in_one_call, stack) if way is ONE_CALL else self._by_products
        if choice.best:
            return compute(ids, rows, asked)
        return timed(choice, way, partial(compute, ids, rows, asked))

    def _in_one_call(
        self, stack: Stack, ids: torch.Tensor, rows: Sequence[KindRows], asked: torch.Tensor | None
    ) -> torch.Tensor:
        forward = rows[0].forward
        if isinstance(forward, PackedForward):
            forward.used.add(Looped.name)
        return stack.compute(ids, rows[0], asked)

    def _by_products(self, ids: torch.Tensor, rows: Sequence[KindRows], asked: torch.Tensor | None) -> torch.Tensor:
        stream = _Stream(self.plan.embedding(ids))
        for index, layer in enumerate(self.plan.layers):
            normal = stream.normalised(layer.before)
            query, key, value = layer.query(normal), layer.key(normal), layer.value(normal)
            if layer.query_norm is not None and layer.key_norm is not None:
                _normalise_heads(query, layer.query_norm)
                _normalise_heads(key, layer.key_norm)
            own: TreeLayer = self.cache.layers[index]
            stream.add(layer.output(rows[self._kinds[index]].attend(layer, own, query, key, value)))
            normal = stream.normalised(layer.after)
            stream.add(layer.down(silu(layer.gate(normal), inplace=True).mul_(layer.up(normal))))
        if asked is not None:
            stream.keep(asked)
        return stream.normalised(self.plan.norm)

    def _head(self) -> Any:
        """The model's, or what computes the same while nothing else hangs on it."""
        head = self.model._modules["lm_head"]
        if not is_unpatched(head):  # hooks of all modules end more than this (`fits`)
            return head
        return FewTokens.of(head) or self._head_in_blocks(product_of(head, now=True)) or head

    def _head_in_blocks(self, product: Any) -> FewBlocks | None:
        """Looked up anew only where the head has another weight or bias."""
        if not isinstance(product, PackedProduct):
            return None
        known = self._known_head
        if known is None or known.weight is not product.weight or known.bias is not product.bias:
            known = self._known_head = FewBlocks.of(product)
        return known

    def _rows(self, forward: Forward, positions: torch.Tensor) -> list[KindRows]:
        angles = self.angles.of(positions.numpy().reshape(-1))
        groups = [cast("PackedGroup", self.masks.group(kind)) for kind in self.masks.each_kind]
        return [KindRows(forward, index, group.places(), *angles) for index, group in enumerate(groups)]


class _Stream:
    """The residual stream of a forward, [1, T, M], to which the next norm adds what was computed last."""

    def __init__(self, states: torch.Tensor) -> None:
        self._set(states)
        self._added: torch.Tensor | None = None

    def _set(self, states: torch.Tensor) -> None:
        self.states, self._bits = states, bits_of(states)
        self._normal = torch.empty_like(states)
        self._normal_bits, self._none = bits_of(self._normal), self._bits[:0]
        self._squares = np.empty(states.shape[-1], np.float32)
        self._short = states.dtype is torch.bfloat16

    def add(self, states: torch.Tensor) -> None:
        self._added = states

    def normalised(self, norm: Norm) -> torch.Tensor:
        """[1, T, M], valid until the next call."""
        added = self._none if self._added is None else bits_of(self._added)
        NORMALISE(*(self._bits, added, norm.bits, norm.epsilon, self._short, self._squares, self._normal_bits))
        self._added = None
        return self._normal

    def keep(self, asked: torch.Tensor) -> None:
        """Only some nodes from now on."""
        added = self._added
        self._set(self.states.index_select(1, asked))
        self._added = None if added is None else added.index_select(1, asked)


def _normalise_heads(states: torch.Tensor, norm: Norm) -> None:
    bits = bits_of(states)
    squares = np.empty(len(norm.bits), np.float32)
    NORMALISE(bits, bits[:0], norm.bits, norm.epsilon, states.dtype is torch.bfloat16, squares, bits)


def kinds_of_layers(model: Any, kinds: dict[str, MaskKind] | MaskKind) -> list[int]:
    """Which mask each layer takes."""
    config = model.config.get_text_config(decoder=True)
    if not isinstance(kinds, dict):
        return [0] * config.num_hidden_layers
    names = list(kinds)
    return [names.index(name) for name in config.layer_types]


def decoder_for(model: Any, cache: TreeCache, masks: TreeMasks) -> FusedDecoder | None:
    """A decoder of a target; `None` where the model is of another kind."""
    plan = plan_of(model)
    return None if plan is None else FusedDecoder(model, plan, cache, masks)


def can_fuse(model: Any) -> bool:
    """Whether there would be one: the loops are machine code, and the model is of LLaMA's kind."""
    return is_compiled() and plan_of(model) is not None


def is_compiled() -> bool:
    """Whether the loops are machine code."""
    return NORMALISE.ready and ROTATE.ready
