"""The attention implementation "lade": what it computes is what eager attention does, on any device."""

import copy

import pytest
import torch
from families import BRANCHABLE
from tiny import tiny_model, words
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

import lade
from lade.kernels import available
from lade.target import own

CHOSEN = [family for family in BRANCHABLE if family.name in {"llama", "gemma2", "gpt_oss", "mistral"}]


@pytest.fixture
def registered():
    own.install()
    yield
    own.remove()


def both(family, inputs):
    """Logits of eager attention and of ours."""
    model = copy.deepcopy(tiny_model(family))
    found = []
    for name in ("eager", own.NAME):
        model.set_attn_implementation(name)
        with torch.no_grad():
            found.append(model(**inputs).logits[inputs["attention_mask"].bool()])
    return found


@pytest.mark.parametrize("family", CHOSEN, ids=lambda family: family.name)
def test_logits_are_those_of_eager_attention(family, registered):
    """With soft caps, sinks and windows, prompts of unequal lengths included."""
    torch.testing.assert_close(*both(family, words(5, 9)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", CHOSEN[:3], ids=lambda family: family.name)
def test_a_prefill_without_padding_is_the_kernels(family, registered, monkeypatch):
    interpreted = pytest.importorskip("interpreted", reason="needs triton", exc_type=ImportError)
    if not interpreted.chosen():
        pytest.skip("needs Triton's interpreter: no CUDA device")
    interpreted.hasten()
    launched = []
    monkeypatch.setattr(available, "runs", lambda device: launched.append(device) or True)
    torch.testing.assert_close(*both(family, words(5)), rtol=1e-4, atol=1e-5)
    assert launched


def test_nothing_stays_registered():
    own.install()
    own.install()
    own.remove()
    for interface in (AttentionInterface, AttentionMaskInterface):
        assert own.NAME not in interface._global_mapping


def test_models_are_loaded_with_it_and_all_is_undone():
    model, _ = lade.models.load("stories260K", attn_implementation="lade")
    lade.augment_all()
    assert torch.isfinite(model(torch.tensor([[1, 5, 7]])).logits).all()
    lade.restore_all()
    for interface in (AttentionInterface, AttentionMaskInterface):
        assert own.NAME not in interface._global_mapping
