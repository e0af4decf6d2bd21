"""The core's laws on a CUDA device: the same texts there, with the host path that is used there."""

import pytest
import torch
from families import BRANCHABLE
from tiny import tiny_model, words

import lade
from lade.measure.audit import parting

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CONFIG = lade.LookaheadConfig(mode="lookahead", window=5, ngram=4)
CHOSEN = [family for family in BRANCHABLE if family.name in {"llama", "gemma3", "gpt2", "mixtral", "deepseek_v3"}]


def on_device(family):
    return tiny_model(family).to("cuda")


@pytest.fixture(autouse=True)
def back_to_the_host():
    yield
    for family in CHOSEN:
        tiny_model(family).to("cpu")


@pytest.mark.parametrize("lengths", [(6,), (5, 9, 3)])
@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("family", CHOSEN, ids=lambda family: family.name)
def test_texts_are_those_of_plain_decoding(family, sample, lengths):
    model = on_device(family)
    inputs = {name: tensor.to("cuda") for name, tensor in words(*lengths).items()}
    texts = []
    for generate in (model.generate, lambda **kwargs: lade.generate(model, config=CONFIG, **kwargs)):
        torch.manual_seed(0)
        texts.append(generate(**inputs, max_new_tokens=40, do_sample=sample, top_k=20 if sample else None))
    assert lade.last_stats().fallback is None
    assert torch.equal(*texts)


def test_bfloat16_parts_only_at_near_ties():
    model, _ = lade.models.load("stories260K", dtype="bfloat16", device="cuda")
    ids = torch.tensor([[1, 400, 300, 200]], device="cuda")
    plain = model.generate(ids, max_new_tokens=100, do_sample=False)
    ahead = lade.generate(model, ids, config=CONFIG, max_new_tokens=100, do_sample=False)
    found = parting(model, plain[0], ahead[0], 4)
    assert found is None or found.explained, found
