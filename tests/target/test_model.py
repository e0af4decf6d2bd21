"""A real model under trees: each node's logits are its path's, rows keep to themselves, positions have an end."""

import contextlib
import copy
import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from counting import forward_widths
from families import BRANCHABLE, POSITIONS, VOCAB, WINDOW, Family
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model, words
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from treetargets import Reading, alone, along_paths, empty_target, path_of, random_draft, some_slots, target_of

import lade
from lade.core.stats import Clock
from lade.core.tree import Draft, TreeBuilder, chain
from lade.target import layers as layers_module
from lade.target import store as store_module
from lade.target.cache import TreeCache
from lade.target.masks import layer_kinds
from lade.target.model import HFTarget

BY_NAME = {family.name: family for family in BRANCHABLE}
TOLERANCE = 1e-10  # float64; a wrong mask or position gives 0.1 and more
TREES = dict.fromkeys(("llama", "mistral-sliding", "gemma3", "gpt2", "opt"), TOLERANCE)
TREES |= dict.fromkeys(("llama4", "deepseek_v3"), 1e-5)  # they rotate in float32 whatever their weights are


PACKED = pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])


@pytest.mark.compat
@PACKED
@pytest.mark.parametrize("name", TREES)
@settings(max_examples=6)
@given(lengths=st.lists(st.integers(1, 2 * WINDOW), min_size=1, max_size=3), data=st.data())
@torch.no_grad()
def test_each_node_sees_its_path(name: str, packed: bool, lengths: list[int], data: st.DataObject) -> None:
    """Whatever the trees, the lengths and the slots of a forward: the logits are those of the text alone."""
    model, batch = tiny_model(BY_NAME[name], "sdpa", torch.float64), words(*lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers_module, "SLACK", 2)
        target = target_of(model, tuple(lengths), packed=packed)
        texts = [batch["input_ids"][row, -length:].tolist() for row, length in enumerate(lengths)]
        for _ in range(3):
            slots = data.draw(some_slots(len(lengths)))
            drafts = [random_draft(data, root=3 + slot) for slot in slots]
            outputs = target.forward(slots, drafts)
            for row, (slot, draft) in enumerate(zip(slots, drafts, strict=True)):
                for node, expected in along_paths(model, texts[slot], draft).items():
                    assert torch.allclose(outputs.at(row, node)[0], expected, atol=TREES[name], rtol=0)
                    assert outputs.greedy(row, node) == int(expected.argmax())
            paths = [path_of(draft, data.draw(st.integers(0, len(draft) - 1))) for draft in drafts]
            target.keep(slots, paths)
            for slot, draft, path in zip(slots, drafts, paths, strict=True):
                texts[slot] += [draft.tokens[node] for node in path]


@PACKED
@pytest.mark.parametrize("name", TREES)
@torch.no_grad()
def test_a_root_alone_sees_its_text(name: str, packed: bool) -> None:
    """Through padding, windows, chunks and kept trees: a forward of one node has a way of its own."""
    model, lengths = tiny_model(BY_NAME[name], "sdpa", torch.float64), (3, WINDOW)
    batch = words(*lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers_module, "SLACK", 2)
        target = target_of(model, lengths, packed=packed)
        texts = [batch["input_ids"][row, -length:].tolist() for row, length in enumerate(lengths)]
        for step in range(3 * WINDOW):
            slot = step % 2
            outputs = target.forward([slot], [Draft.alone(3 + step)])
            texts[slot].append(3 + step)
            assert torch.allclose(outputs.at(0, 0)[0], alone(model, texts[slot]), atol=TREES[name], rtol=0)
            target.keep([slot], [[0]])
            if step % 5 == 0:
                tree = TreeBuilder(50)
                tree.add_path(0, [51, 52], "test")
                tree.add_path(0, [53, 54], "test")
                target.forward([slot], [tree.build()])
                target.keep([slot], [[0, 3, 4]])
                texts[slot] += [50, 53, 54]


@torch.no_grad()
def test_layers_without_windows_of_their_own_share_a_length_of_keys() -> None:
    """A bare cache stores all layers alike. Those of one kind may look further than those of a kind before it."""
    model, width = tiny_model(BY_NAME["gemma3"], "sdpa", torch.float64), 4 * WINDOW
    assert model.config.layer_types[0] == "sliding_attention"
    cache = TreeCache(DynamicCache(), model.config)
    target = HFTarget(model, cache, layer_kinds(model.config), None, Clock(), packed=True)
    batch = words(width, width)
    target.prefill(
        batch["input_ids"], GenerationConfig(), {"attention_mask": batch["attention_mask"], "use_cache": True}
    )
    texts = batch["input_ids"].tolist()
    for paths in ([[0, 1, 2], [0]], [[0], [0]]):
        drafts = [chain([5, 6, 7], asked=True)] * 2
        outputs = target.forward([0, 1], drafts)
        for row, text in enumerate(texts):
            assert torch.allclose(outputs.at(row, 2)[0], alone(model, [*text, 5, 6, 7]), atol=TOLERANCE, rtol=0)
        target.keep([0, 1], paths)
        for text, path in zip(texts, paths, strict=True):
            text += [5, 6, 7][: len(path)]


@PACKED
@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "gemma4", "gpt2", "llama4"])
@settings(max_examples=8)
@given(data=st.data())
@torch.no_grad()
def test_prompts_are_read_in_chunks_beside_drafts(name: str, packed: bool, data: st.DataObject) -> None:
    """Whatever else is in a forward, the logits are those of the text alone; memory is tight, and used again."""
    model = tiny_model(BY_NAME[name], "sdpa", torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers_module, "SLACK", 2)
        patch.setattr(store_module, "SPARE", 3)
        reading = Reading(model, packed, TREES.get(name, TOLERANCE))
        reading.run(data)


@PACKED
@torch.no_grad()
def test_a_chunk_that_asks_for_nothing(packed: bool) -> None:
    target = empty_target(tiny_model(BY_NAME["llama"], "sdpa"), packed)
    target.open(0, 3)
    outputs = target.forward([0], [chain([5, 6, 7], asked=False)])
    assert outputs.logits.shape == (0, VOCAB)
    assert list(map(dict, outputs.lines)) == [{}]


@torch.no_grad()
def test_a_prompt_beside_slots_that_decode() -> None:
    """A whole prefill, as plain decoding computes it, into a target with open slots."""
    model = tiny_model(BY_NAME["gemma3"], "sdpa", torch.float64)
    target = empty_target(model, packed=True)
    target.open(7, 3)
    target.forward([7], [chain([5, 6, 7], asked=False)])
    target.keep([7], [[0, 1, 2]])
    target.prefill(words(9, 9)["input_ids"], GenerationConfig(), {"use_cache": True})
    outputs = target.forward([7, 1], [Draft.alone(9), Draft.alone(8)])
    texts = [[5, 6, 7, 9], [*words(9, 9)["input_ids"][1].tolist(), 8]]
    for row, text in enumerate(texts):
        assert torch.allclose(outputs.at(row, 0)[0], alone(model, text), atol=TOLERANCE, rtol=0)


@PACKED
@torch.no_grad()
def test_export_is_in_the_order_of_the_slots(packed: bool) -> None:
    model = tiny_model(BY_NAME["llama"], "sdpa", torch.float64)
    target = target_of(model, (6, 6, 6), packed=packed)
    target.forward([2, 0, 1], [Draft.alone(5)] * 3)
    stock = DynamicCache(config=model.config)
    target.export(stock)
    plain = DynamicCache(config=model.config)
    model(input_ids=words(6, 6, 6)["input_ids"], past_key_values=plain)
    for ours, theirs in zip(stock.layers, plain.layers, strict=True):
        assert torch.allclose(ours.keys, theirs.keys, atol=TOLERANCE, rtol=0)


# What is asked of the model


@contextlib.contextmanager
def hooked(module: torch.nn.Module, hook: Any) -> Iterator[None]:
    handle = module.register_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def test_one_forward_per_step() -> None:
    model = tiny_model(BY_NAME["llama"], "sdpa")
    with forward_widths(model) as calls:
        lade.generate(model, **words(9), do_sample=False, max_new_tokens=30)
    stats = lade.last_stats()
    assert calls[0] == 9
    assert len(calls) == stats.steps + 1
    assert sum(calls[1:]) == stats.forward_tokens


@PACKED
@pytest.mark.parametrize("name", ["llama", "gpt2"])
@torch.no_grad()
def test_logits_of_the_questions_only(name: str, packed: bool) -> None:
    """The output projection sees the nodes that the draft asks about, no others."""
    model, seen = tiny_model(BY_NAME[name], "sdpa"), []
    target = target_of(model, (5, 5), packed=packed)
    builder = TreeBuilder(5)
    builder.add_path(0, [6, 7, 8, 9], "test", query=False)
    builder.queries |= {2, 4}
    with hooked(model.get_output_embeddings(), lambda module, args, kwargs, output: seen.append(args[0].shape[:2])):
        outputs = target.forward([0, 1], [builder.build(), TreeBuilder(5).build()])
    assert seen == ([(1, 4)] if packed else [(2, 3)])
    assert outputs.logits.shape == (4 if packed else 6, VOCAB)
    asked = [{0, 2, 4}, {0}] if packed else [{0, 2, 4}] * 2
    assert [set(lines) for lines in outputs.lines] == asked


@pytest.mark.parametrize(("tokens", "device", "entered"), [(1, "cuda", 1), (2, "cuda", 0), (1, "cpu", 0)])
@torch.no_grad()
def test_decode_time_experts_are_for_one_token(tokens: int, device: str, entered: int) -> None:
    """transformers' switch copies the experts' weights per token; on a CPU it switches nothing, and takes its time."""
    model, entries = copy.copy(tiny_model(BY_NAME["llama"], "sdpa")), []

    @contextlib.contextmanager
    def optimized() -> Iterator[None]:
        entries.append(1)
        yield

    model._optimize_model_for_decode = optimized
    target = target_of(model, (5,))
    entries.clear()  # the prefill is plain decoding's own
    target.device = torch.device(device)
    with target.experts_for(tokens):
        assert len(entries) == entered


@torch.no_grad()
def test_one_token_alone_is_asked_for_as_plain_decoding_asks() -> None:
    """Without a mask and without a choice of logits, so that it takes no longer."""
    model, seen = tiny_model(BY_NAME["gemma3"], "sdpa"), []
    target = target_of(model, (5,), packed=False)
    builder = TreeBuilder(5)
    builder.add_path(0, [6], "test")

    def note(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        seen.append((kwargs["attention_mask"], kwargs.get("logits_to_keep")))

    with hooked(model, note):
        target.forward([0], [TreeBuilder(5).build()])
        target.forward([0], [builder.build()])
    assert seen[0] == ({"sliding_attention": None, "full_attention": None}, None)
    assert all(mask.shape[2] == 2 for mask in seen[1][0].values())


def test_nothing_on_the_model_is_changed() -> None:
    model = tiny_model(BY_NAME["gemma3"], "sdpa")
    before = dict(vars(model)), model.config.to_dict(), model.generation_config.to_dict()
    lade.generate(model, **words(9, 5), do_sample=False, max_new_tokens=20)
    assert (vars(model), model.config.to_dict(), model.generation_config.to_dict()) == before


# Ends

CONFIG = lade.LookaheadConfig(mode="lookahead", ngram=4, window=5, guesses=5, pool_from_prompt=True)


def assert_plain(model: PreTrainedModel, prompt: dict[str, Tensor], config: Any = CONFIG, **kwargs: Any) -> Tensor:
    kwargs = {"do_sample": False} | kwargs
    ours = lade.generate(model, **prompt, config=config, **kwargs)
    assert lade.last_stats().fallback is None
    assert ours.tolist() == model.generate(**prompt, **kwargs).tolist()
    return ours


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        lade.LookaheadConfig(mode="lookahead", ngram=2, window=1),
        lade.LookaheadConfig(mode="lookahead", guesses=-1),
    ],
)
@pytest.mark.parametrize("new_tokens", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral-sliding"])
def test_few_tokens(name: str, new_tokens: int, config: lade.LookaheadConfig) -> None:
    model = tiny_model(BY_NAME[name], "sdpa")
    ours = assert_plain(model, words(9), config, max_new_tokens=new_tokens)
    assert ours.shape == (1, 9 + new_tokens)
    assert lade.last_stats().steps <= new_tokens - 1


def test_end_in_the_first_token() -> None:
    """The prefill's token ends the text: no step is taken."""
    model = tiny_model(BY_NAME["llama"], "sdpa")
    first = int(model.generate(**words(9), do_sample=False, max_new_tokens=1)[0, -1])
    assert assert_plain(model, words(9), max_new_tokens=30, eos_token_id=first).shape == (1, 10)
    assert lade.last_stats().steps == 0


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral-sliding"])
@pytest.mark.parametrize("lengths", [(1,), (1, 1), (1, 6)], ids=str)
def test_prompts_of_one_token(name: str, lengths: tuple[int, ...]) -> None:
    assert_plain(tiny_model(BY_NAME[name], "sdpa"), words(*lengths), max_new_tokens=30)


@pytest.mark.parametrize("beyond", [-1, 0, 1])
@pytest.mark.parametrize("lengths", [(240,), (240, 230)], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "opt", "biogpt", "gpt_bigcode"])
def test_to_the_end_of_a_learned_table(name: str, lengths: tuple[int, ...], beyond: int) -> None:
    """The last token needs no position; up to there the text is plain decoding's: no draft reaches past the table."""
    model = tiny_model(BY_NAME[name], "sdpa")
    ours = assert_plain(model, words(*lengths), max_new_tokens=POSITIONS - 240 + beyond)
    assert ours.shape[1] == POSITIONS + beyond


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_a_text_that_ends_before_the_table_does(name: str) -> None:
    """More tokens are allowed than there are positions; the text ends in time, and so do the drafts."""
    model = tiny_model(BY_NAME[name], "sdpa")
    text = model.generate(**words(240), do_sample=False, max_new_tokens=16)[0, 240:].tolist()
    end = next(token for token in reversed(text) if text.index(token) >= 8)
    assert_plain(model, words(240), max_new_tokens=100, eos_token_id=end)
    assert lade.last_stats().new_tokens == text.index(end) + 1


def test_depth_limits() -> None:
    """No deeper than the tokens still allowed after the next one, nor past the last position."""
    model = tiny_model(BY_NAME["gpt2"], "sdpa")
    target = target_of(model, (9, 5), position_limit=12)  # the roots stand at positions 9 and 5
    assert [target.depth_limit(0, remaining) for remaining in (1, 2, 3, 4, 99)] == [0, 1, 2, 2, 2]
    assert [target.depth_limit(1, remaining) for remaining in (1, 7, 8, 99)] == [0, 6, 6, 6]
    assert target_of(model, (9,)).depth_limit(0, 99) == 98


NARROW = 40  # positions, fewer than the nodes of a large tree
SMALL = {"hidden_size": 32, "max_position_embeddings": NARROW, "vocab_size": 64, "tie_word_embeddings": False}
BERT = SMALL | {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "is_decoder": True}
NARROW_FAMILIES = {
    # Cuts a buffer of that many token types by the number of tokens of a forward.
    "big_bird": Family("narrow big_bird", "big_bird", BERT | {"attention_type": "original_full"}),
    # Cuts a causal mask of that many rows by the number of slots.
    "gpt_neo": Family(
        "narrow gpt_neo",
        "gpt_neo",
        SMALL | {"num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]]},
    ),
    "bert": Family("narrow bert", "bert", BERT),
}
WIDE_TREES = {
    "auto": {"config": lade.LookaheadConfig(mode="auto", budget=48, adapt=False)},
    "lookahead": {"config": lade.LookaheadConfig(mode="lookahead", ngram=5, window=15, guesses=15)},
    "draft": {"method": lambda draft: lade.DraftModel(draft, tokens=30, adapt="fixed")},
    "candidates": {"method": lambda draft: lade.MultiCandidate(draft, widths=(4, 3, 3), likeliest=True)},
    "self": {"method": lambda draft: lade.SelfSpeculative(((1,), ()), tokens=30, adapt="fixed")},
}


# Layers are left out of models only that name them as most do.
NARROW_CASES = [(name, way) for name in NARROW_FAMILIES for way in WIDE_TREES if way != "self" or name == "gpt_neo"]


@cache
def narrow_text(name: str, lengths: tuple[int, ...], **settings: Any) -> list[list[int]]:
    """What plain decoding writes up to the last position."""
    model = tiny_model(NARROW_FAMILIES[name])
    written: list[list[int]] = model.generate(**words(*lengths), **settings).tolist()
    return written


@pytest.mark.parametrize("lengths", [(26,), (26, 22)], ids=str)
@pytest.mark.parametrize(("name", "way"), NARROW_CASES)
def test_context_and_tree_fit_the_positions(name: str, lengths: tuple[int, ...], way: str) -> None:
    """Models whose forward takes no more tokens, or slots, than there are positions: as far as plain decoding goes."""
    model, draft = (tiny_model(replace(NARROW_FAMILIES[name], seed=seed)) for seed in (0, 1))
    if way in ("auto", "candidates"):
        draft = model
    given = {key: value(draft) if key == "method" else value for key, value in WIDE_TREES[way].items()}
    settings = {"do_sample": False, "max_new_tokens": NARROW - 26 + 1}
    ours = lade.generate(model, **words(*lengths), **settings, **given).tolist()
    assert ours == narrow_text(name, lengths, **settings)
    assert lade.last_stats().fallback is None
    assert max(lade.last_stats().widths) > 4


@pytest.mark.parametrize("name", ["gpt_neo", "big_bird"])
def test_rows_that_ended_fit_the_positions(name: str) -> None:
    """What plain decoding computes behind a row that ended early, beside one that stands much further on."""
    model = tiny_model(NARROW_FAMILIES[name])
    kwargs = words(10, 10, 10) | {"do_sample": False, "max_new_tokens": NARROW - 10, "return_dict_in_generate": True}
    text = model.generate(**kwargs).sequences[:, 10:].tolist()
    kwargs |= {"eos_token_id": _ends(text)}
    theirs, ours = model.generate(**kwargs), lade.generate(model, **kwargs)
    assert lade.last_stats().fallback is None
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    for own, stock in zip(ours.past_key_values.layers, theirs.past_key_values.layers, strict=True):
        assert torch.allclose(own.keys, stock.keys, atol=1e-4)


def _ends(text: list[list[int]]) -> list[int]:
    """Two tokens that end one row within 5 tokens, another one between 10 and 24, and the third one never."""
    for pair in itertools.combinations(set(itertools.chain(*text)), 2):
        lengths = sorted(next((at for at, token in enumerate(row) if token in pair), NARROW) for row in text)
        if lengths[0] < 5 and 10 < lengths[1] < 24 and lengths[2] == NARROW:
            return list(pair)
    raise AssertionError("no two tokens end these rows so far apart")
