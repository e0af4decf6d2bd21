"""A captured static step on a CUDA device: the same text, no wait of the host, graphs of every size."""

import dataclasses
import functools

import pytest
import torch
from families import BY_NAME
from tiny import tiny_model, words
from torch.nn.functional import silu
from transformers.models.llama import modeling_llama as llama

import lade
from lade.kernels import between, products
from lade.kernels.sizes import program_tokens
from lade.models.widen import widen
from lade.static import shelf

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),  # torch says that it is a prototype
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),  # torch.compile captures one to begin with
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CONFIG = lade.LookaheadConfig(mode="auto", budget=12, adapt=False)
NEW = 24


@pytest.mark.parametrize("sampled", [False, True], ids=("greedy", "sampled"))
@pytest.mark.parametrize("lengths", [(9,), (9, 21, 4, 13)], ids=("alone", "four"))
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
@torch.no_grad()
def test_texts_of_plain_decoding(name, lengths, sampled):
    model = tiny_model(BY_NAME[name], "sdpa", torch.float64).to("cuda")
    try:
        kwargs = {key: value.to("cuda") for key, value in words(*lengths).items()}
        kwargs |= {"do_sample": sampled, "max_new_tokens": NEW}
        torch.manual_seed(3)
        plain = model.generate(**kwargs)
        torch.manual_seed(3)
        assert torch.equal(lade.generate(model, **kwargs, config=CONFIG), plain)
        stats = lade.last_stats()
        assert (stats.not_static, set(stats.attention)) == (None, {"static"})
        graphs = shelf._kept[model].graphs
        assert graphs.captures, "the step was not captured"
        torch.cuda.set_sync_debug_mode("error")
        next(iter(graphs.sizes.values())).run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        model.to("cpu")


@pytest.mark.parametrize("dtype", between.HALVES, ids=str)
@torch.no_grad()
def test_kernels_between_products(dtype):
    """They round as PyTorch's operations do, at the sizes of a 7B shape."""
    torch.manual_seed(0)
    make = functools.partial(torch.randn, device="cuda", dtype=dtype)
    norm = llama.LlamaRMSNorm(4096).to("cuda", dtype)
    norm.weight.copy_(make(4096))
    states, gates, values = make(1, 64, 4096), make(1, 64, 11008), make(1, 64, 11008)
    query, key = make(1, 64, 32, 128).transpose(1, 2), make(1, 64, 8, 128).transpose(1, 2)
    cos, sin = make(2, 1, 64, 128)
    pairs = [
        (between.rms_norm(states, norm.weight, norm.variance_epsilon), norm(states)),
        (between.gated(gates, values), torch.nn.functional.silu(gates) * values),
        *zip(between.rotate(query, key, cos, sin), llama.apply_rotary_pos_emb(query, key, cos, sin), strict=True),
    ]
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
        assert (found != expected).float().mean() < 0.01


@pytest.mark.parametrize("tokens", [1, 16, 17, 64])
@pytest.mark.parametrize("dtype", between.HALVES, ids=str)
@torch.no_grad()
def test_products(dtype, tokens):
    """Their error to float64 is that of PyTorch's, at the sizes of a 7B shape and at others, alone and one after
    another, so that each begins while the one before it ends."""
    torch.manual_seed(0)
    make = functools.partial(torch.randn, device="cuda", dtype=dtype)
    for lines, size in (((4096, 1024, 1024), 4096), ((4096,), 11008), ((49152,), 4096), ((576, 192, 192), 576)):
        weights = [make(count, size) / size**0.5 for count in lines]
        states, residual = make(1, tokens, size), make(1, tokens, sum(lines))
        biases = [make(count) for count in lines]
        assert products.fit(states, *weights)
        exact = torch.cat([states.double() @ weight.double().T for weight in weights], dim=-1)
        theirs = torch.cat([torch.nn.functional.linear(states, weight) for weight in weights], dim=-1)
        for _ in range(3):
            found = products.linear(states, weights, [None] * len(weights))
            assert error(found, exact) <= 1.1 * error(theirs, exact)
        with_bias = products.linear(states, weights, biases)
        assert error(with_bias, exact + torch.cat(biases)) <= 1.1 * error(theirs, exact)
        assert torch.equal(products.linear(states, weights, [None] * len(weights), residual), residual + found)
    gates, values = make(2, 11008, 4096) / 64
    states = make(1, tokens, 4096)
    theirs = silu(torch.nn.functional.linear(states, gates)) * torch.nn.functional.linear(states, values)
    exact = silu(states.double() @ gates.double().T) * (states.double() @ values.double().T)
    assert error(products.gated(states, gates, values), exact) <= 1.1 * error(theirs, exact)


def error(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


@torch.no_grad()
def test_products_of_both_kinds_are_timed():
    """The faster ones are captured, for few tokens and for more."""
    model, _ = lade.models.load("stories260K", dtype="bfloat16", device="cuda")
    model = widen(model, hidden_size=1024, intermediate_size=4096)
    ids = torch.tensor([[1, 400, 300, 200]], device="cuda")
    config = dataclasses.replace(CONFIG, budget=48)
    lade.generate(model, ids, config=config, do_sample=False, max_new_tokens=NEW, eos_token_id=None)
    graphs = shelf._kept[model].graphs
    assert graphs.captures
    assert set(graphs.step.multiplies) == {program_tokens(size.nodes) for size in graphs.sizes}


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mixtral"])
@torch.no_grad()
def test_steps_in_half_precision(name):
    """Logits of a step with all kernels are those of a plain forward, but for rounding."""
    model = tiny_model(BY_NAME[name], "sdpa", torch.bfloat16).to("cuda")
    try:
        kwargs = {key: value.to("cuda") for key, value in words(9).items()}
        lade.generate(model, **kwargs, do_sample=False, max_new_tokens=NEW, config=CONFIG)
        assert lade.last_stats().not_static is None, "the probe has compared the logits"
    finally:
        model.to("cpu")


@torch.no_grad()
def test_graphs_of_torch_compile_take_nothing_from_ours():
    """They let go of what cuBLAS works in: ours go on with their own, whatever is written to the rest."""
    model, _ = lade.models.load("stories260K", dtype="bfloat16", device="cuda")
    model, config = widen(model, hidden_size=1024, intermediate_size=4096), dataclasses.replace(CONFIG, budget=1)
    ids = torch.tensor([[1, 400, 300, 200]], device="cuda")

    def decoded():
        return lade.generate(model, ids, config=config, do_sample=False, max_new_tokens=NEW, eos_token_id=None)

    before = decoded()
    graphs = shelf._kept[model].graphs
    compiled = torch.compile(lambda states: states @ states.T, mode="reduce-overhead")
    for _ in range(4):
        compiled(torch.ones(64, 64, device="cuda", dtype=torch.bfloat16))
    torch.cuda.empty_cache()
    kept = [torch.zeros(1 << 20, device="cuda") for _ in range(64)]
    assert torch.equal(decoded(), before)
    assert shelf._kept[model].graphs is graphs
    assert not any(part.any() for part in kept)


@pytest.mark.parametrize("lengths", [(9,), (9, 21, 4, 13)], ids=("alone", "four"))
@torch.no_grad()
def test_the_device_drafts(lengths):
    model = tiny_model(BY_NAME["llama"], "sdpa", torch.float64).to("cuda")
    try:
        kwargs = {key: value.to("cuda") for key, value in words(*lengths).items()}
        kwargs |= {"do_sample": False, "max_new_tokens": NEW}
        plain = model.generate(**kwargs)
        config = lade.LookaheadConfig(mode="auto", budget=12, adapt=False, device_drafts=True)
        assert torch.equal(lade.generate(model, **kwargs, config=config), plain)
        assert set(lade.last_stats().proposed) == {"device"}
        loop = next(iter(shelf._kept[model].graphs.loops.values()))
        torch.cuda.set_sync_debug_mode("error")
        loop._round()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        model.to("cpu")


@pytest.mark.parametrize("device", [False, True], ids=("host", "device"))
@torch.no_grad()
def test_requests_of_an_engine(device):
    model = tiny_model(BY_NAME["llama"], "sdpa", torch.float64).to("cuda")
    try:
        prompts = [words(length)["input_ids"].to("cuda") for length in (9, 21, 4)]
        config = dataclasses.replace(CONFIG, device_drafts=device)
        with lade.Engine(model, config, slots=2) as engine:
            requests = [engine.submit(prompt, max_new_tokens=NEW, do_sample=False) for prompt in prompts]
            engine.run()
            assert engine.not_static is None
            assert "static" in engine._target.clock.attention
        assert device == any("device" in request.tally.proposed for request in requests)
        plain = [model.generate(prompt, max_new_tokens=NEW, do_sample=False)[0].tolist() for prompt in prompts]
        assert [request.tokens for request in requests] == plain
    finally:
        model.to("cpu")
