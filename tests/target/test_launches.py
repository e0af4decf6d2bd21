"""Packed forwards by the kernel, in Triton's interpreter: the self-probe finds the logits of each path alone."""

import copy

import pytest
import torch
from families import BRANCHABLE, BY_NAME, PACKED
from tiny import tiny_model, with_low_caps, words

import lade
from lade.kernels import available
from lade.target import model as target
from lade.target import own, probe
from lade.target.choice import Ways
from lade.target.launches import Kernel
from lade.target.masks import layer_kinds

interpreted = pytest.importorskip("interpreted", reason="needs triton", exc_type=ImportError)
if not interpreted.chosen():
    pytest.skip("needs Triton's interpreter: no CUDA device", allow_module_level=True)

CHOSEN = [family for family in BRANCHABLE if family.name in {"llama4", "gemma2", "gpt_oss"}]


@pytest.mark.parametrize("family", CHOSEN, ids=lambda family: family.name)
def test_trees_of_unequal_rows(family, monkeypatch):
    """Full, sliding and chunked layers, soft caps, sinks, padded prompts, and trees after a path was moved together."""
    interpreted.hasten()
    used = []

    class Counted(Kernel):
        def attend(self, call):
            used.append(call)
            return super().attend(call)

    monkeypatch.setattr(available, "runs", lambda device: True)
    monkeypatch.setattr(target, "ways_of", lambda *given: Ways((Counted(),)))
    own.install()
    model = with_low_caps(copy.deepcopy(tiny_model(family)))
    model.set_attn_implementation(own.NAME)
    kinds = layer_kinds(model.config.get_text_config(decoder=True))
    assert probe._probe(model, kinds, None, packed=True) is None
    assert used
    own.remove()


@pytest.mark.real
@pytest.mark.parametrize("family", PACKED)
def test_texts_by_the_kernel_are_those_of_plain_decoding(family, monkeypatch):
    interpreted.hasten()
    monkeypatch.setattr(available, "runs", lambda device: True)
    monkeypatch.setattr(target, "ways_of", lambda *given: Ways((Kernel(),)))
    model, given = tiny_model(BY_NAME[family], "sdpa"), words(14) | {"do_sample": False, "max_new_tokens": 12}
    config = lade.LookaheadConfig(mode="lookahead", ngram=4, window=4, guesses=4)
    assert torch.equal(lade.generate(model, **given, config=config), model.generate(**given))
    assert lade.last_stats().attention["kernel"] > 0
