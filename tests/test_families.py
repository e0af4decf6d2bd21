"""Every family the engine claims: the text is plain decoding's, and lookahead really wrote it."""

import itertools
from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import pytest
import torch
from families import BRANCHABLE, BY_NAME, VOCAB, WINDOW, Family
from identity import Identity, PlainText, plain_text
from sidebyside import assert_looked_ahead
from tiny import tiny_model, words
from torch import Tensor
from transformers import GitConfig, GitForCausalLM, PreTrainedModel

import lade

NEW_TOKENS = 25
LONG = 11 * WINDOW + 1  # more than a layer of this window ever holds
BATCHES = ((9,), (5, 9, 3))
SETTINGS = (
    lade.LookaheadConfig(mode="lookahead", ngram=5, window=7, guesses=7),
    lade.LookaheadConfig(mode="lookahead", ngram=3, window=4, guesses=-1, pool_from_prompt=True),
)
AUTO = lade.LookaheadConfig(mode="auto", budget=24, adapt=False)  # the clock decides nothing
EDGES = (
    SETTINGS[1],
    lade.LookaheadConfig(mode="lookahead", ngram=2, window=1, guesses=1, pool_from_prompt=True),
    lade.LookaheadConfig(mode="lookahead", ngram=7, window=20, guesses=20),
    lade.LookaheadConfig(mode="lookahead", ngram=5, window=15, guesses=15, always_forward_one=False),
    AUTO,
)
COMPAT = ("llama", "mistral-sliding", "gemma3", "gpt2", "opt", "mixtral", "gpt_oss")
FAMILIES = [
    pytest.param(family, id=family.name, marks=[pytest.mark.compat] if family.name in COMPAT else [])
    for family in BRANCHABLE
]
# Layers that see only the last tokens, in every way that a family writes them.
WINDOWED = (
    "mistral-sliding",
    "qwen2-sliding",
    "phi3-sliding",
    "gemma2",
    "gemma3",
    "gemma4",
    "gpt_oss",
    "olmo3",
    "cohere2",
    "starcoder2",
    "exaone4",
    "llama4",
)
SAMPLED = ("llama", "mistral-sliding", "gemma3", "gpt2", "gpt_oss", "falcon", "llama4", "deepseek_v3")
SAMPLING = {"do_sample": True, "temperature": 0.3, "top_k": 8, "max_new_tokens": NEW_TOKENS}


def label(config: lade.LookaheadConfig) -> str:
    return f"{config.ngram}-{config.window}-{config.guesses}"


@cache
def plain(family: Family, attention: str, lengths: tuple[int, ...], dtype: torch.dtype = torch.float32) -> PlainText:
    return plain_text(tiny_model(family, attention, dtype), **words(*lengths), max_new_tokens=NEW_TOKENS)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy(family: Family, identity: Identity) -> None:
    """The paper's window over a text alone, with the family's first attention; trees of any shape in batches, and under
    every attention, are in `test_random_trees`."""
    attention, lengths = family.attention[0], BATCHES[0]
    model = tiny_model(family, attention)
    ours = lade.generate(model, **words(*lengths), config=SETTINGS[0], do_sample=False, max_new_tokens=NEW_TOKENS)
    identity.check(ours, plain(family, attention, lengths))
    assert_looked_ahead()


@pytest.mark.parametrize("family", [family for family in BRANCHABLE if family.float64], ids=lambda family: family.name)
def test_greedy_float64(family: Family, identity: Identity) -> None:
    """In the default mode, a batch with the last attention of the family."""
    attention = family.attention[-1]
    # In float64, transformers' eager attention makes nothing but NaN of padding: float64's lowest number, in a float32
    # softmax, is minus infinity.
    lengths = BATCHES[1] if attention != "eager" else (9, 9, 9)
    model = tiny_model(family, attention, torch.float64)
    ours = lade.generate(model, **words(*lengths), config=AUTO, do_sample=False, max_new_tokens=NEW_TOKENS)
    identity.check(ours, plain(family, attention, lengths, torch.float64))
    assert_looked_ahead()


@pytest.mark.parametrize("config", EDGES, ids=label)
@pytest.mark.parametrize("name", COMPAT)
def test_other_windows(name: str, config: lade.LookaheadConfig, identity: Identity) -> None:
    """In a batch, whose rows draft as they do alone (`test_steps`)."""
    family, lengths = BY_NAME[name], BATCHES[1]
    attention = family.attention[-1]
    ours = lade.generate(
        tiny_model(family, attention), **words(*lengths), config=config, do_sample=False, max_new_tokens=NEW_TOKENS
    )
    identity.check(ours, plain(family, attention, lengths))
    assert_looked_ahead()


@pytest.mark.parametrize(
    ("lengths", "chunk"), [((3 * WINDOW, LONG), None), ((LONG,), 2 * WINDOW + 1)], ids=("padded", "chunked")
)
@pytest.mark.parametrize("name", WINDOWED)
def test_past_several_windows(name: str, lengths: tuple[int, ...], chunk: int | None, identity: Identity) -> None:
    family = BY_NAME[name]
    model = tiny_model(family, family.attention[-1])
    kwargs = words(*lengths, seed=1) | {"max_new_tokens": 3 * WINDOW, "prefill_chunk_size": chunk}
    ours = lade.generate(model, **kwargs, config=SETTINGS[0], do_sample=False)
    identity.check(ours, plain_text(model, **kwargs))
    assert_looked_ahead()


@pytest.mark.compat
@pytest.mark.parametrize("name", SAMPLED)
def test_seeded_copies(name: str) -> None:
    """One prompt, one sample and batches of prompts are in `test_batches`."""
    family = BY_NAME[name]
    model = tiny_model(family, family.attention[-1])
    kwargs = words(9) | SAMPLING | {"num_return_sequences": 3}
    torch.manual_seed(1)
    theirs = model.generate(**kwargs)
    torch.manual_seed(1)
    ours = lade.generate(model, **kwargs, config=SETTINGS[1])
    assert ours.tolist() == theirs.tolist()
    assert_looked_ahead()


TABLES = {"gpt2": "n_positions", "opt": "max_position_embeddings", "biogpt": "max_position_embeddings"}


@pytest.mark.parametrize("name", TABLES)
def test_at_the_end_of_the_position_table(name: str, identity: Identity) -> None:
    """A text allowed to grow past the table, but ending in time: no draft may reach beyond."""
    family, positions = BY_NAME[name], 64
    model = tiny_model(replace(family, config=family.config | {TABLES[name]: positions}), "sdpa")
    prompts = (words(9, seed=seed) for seed in itertools.count())
    prompt, end = next((prompt, end) for prompt in prompts if (end := newcomer(model, prompt, positions)) is not None)
    kwargs = prompt | {"max_new_tokens": 2 * positions, "eos_token_id": end}
    expected = plain_text(model, **kwargs)
    assert positions - 3 < expected.sequences.shape[1] <= positions
    identity.check(lade.generate(model, **kwargs, config=SETTINGS[0], do_sample=False), expected)
    assert_looked_ahead()


def newcomer(model: PreTrainedModel, prompt: dict[str, Tensor], length: int) -> int | None:
    """A token that the text holds among its last two only, where there is one."""
    start = prompt["input_ids"].shape[1]
    text = model.generate(**prompt, do_sample=False, max_new_tokens=length - start)[0, start:].tolist()
    return next((token for token in text[-2:] if token not in text[:-2]), None)


@pytest.mark.parametrize("budget", [1, 16])
def test_eager_attention_always_gets_its_mask(budget: int) -> None:
    """As from plain decoding: this family's adds it unasked."""
    kind = pytest.importorskip("transformers.models.modernbert_decoder")
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= dict.fromkeys([f"{name}_token_id" for name in ("pad", "bos", "eos", "cls", "sep")], 0)
    config = kind.ModernBertDecoderConfig(vocab_size=VOCAB, max_position_embeddings=128, **sizes)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model, prompt = kind.ModernBertDecoderForCausalLM(config).eval(), words(9)
    plain = model.generate(**prompt, do_sample=False, min_new_tokens=40, max_new_tokens=40)
    ours = lade.generate(
        model,
        **prompt,
        do_sample=False,
        min_new_tokens=40,
        max_new_tokens=40,
        config=lade.LookaheadConfig(budget=budget),
    )
    stats = lade.last_stats()
    assert stats is not None
    assert stats.fallback is None
    assert ours.tolist() == plain.tolist()


@pytest.mark.parametrize(("lengths", "alone"), [((9,), True), ((9, 9), False), ((9, 5), False)])
def test_a_text_of_git_branches_alone(lengths: tuple[int, ...], alone: bool) -> None:
    """Plain decoding widens the mask of a batch by the tokens of an image, without an image too."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = dict.fromkeys([f"{name}_token_id" for name in ("pad", "bos", "eos")], 0)
    config = GitConfig(vision_config=sizes | {"image_size": 8, "patch_size": 4}, vocab_size=VOCAB, **sizes, **ids)
    torch.manual_seed(0)
    model, prompts = GitForCausalLM(config).eval(), words(*lengths)
    settings = {"do_sample": False, "min_new_tokens": 30, "max_new_tokens": 30}
    plain = model.generate(**prompts, **settings)
    with nullcontext() if alone else pytest.warns(lade.FallbackWarning, match="git"):
        ours = lade.generate(model, **prompts, **settings, config=lade.LookaheadConfig())
    assert ours.tolist() == plain.tolist()
