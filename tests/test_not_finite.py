"""Tokens whose keys or values are NaN or infinite: plain decoding never comes to one that a draft may hold."""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from families import BY_NAME
from tiny import tiny_model, words
from torch.testing import assert_close
from transformers import PreTrainedModel

import lade
from lade.core.drafter import roots
from lade.core.request import Request
from lade.core.tree import Draft, TreeBuilder

NAMES = ("llama", "mistral-sliding", "gemma3", "gpt2", "gpt_oss", "qwen3_moe")
NEW_TOKENS = 18
LENGTHS = ((9,), (9, 4, 6))
GREEDY = {"do_sample": False, "max_new_tokens": NEW_TOKENS}


@cache
def plain(name: str, attention: str, dtype: torch.dtype, lengths: tuple[int, ...]) -> Any:
    """What the model writes as it is, and its cache: the same whatever the tokens are worth that its texts lack."""
    model = tiny_model(BY_NAME[name], attention, dtype)
    return model.generate(**words(*lengths), **GREEDY, return_dict_in_generate=True)


def plain_tokens(name: str, attention: str, dtype: torch.dtype) -> frozenset[int]:
    """Those of the model's plain texts."""
    texts = [plain(name, attention, dtype, each).sequences for each in LENGTHS]
    return frozenset(token for text in texts for row in text.tolist() for token in row)


def not_finite(name: str, value: float, attention: str = "eager", dtype: torch.dtype = torch.float32) -> Any:
    """The model and a token that its plain texts lack, whose embedding is not finite."""
    model = copy.deepcopy(tiny_model(BY_NAME[name], attention, dtype))
    seen = plain_tokens(name, attention, dtype)
    probed = {(7919 * index + 13) % 64 for index in range(15)}  # a model whose probe meets it decodes plainly
    token = next(token for token in range(9, 64) if token not in seen | probed)
    with torch.no_grad():
        model.get_input_embeddings().weight[token] = value
    return model, token


class TokenDrafter:
    """Drafts a chain that begins with the token, in some rows and from some emitted index on, beside another one."""

    def __init__(self, token: int, rows: Sequence[int], first: int) -> None:
        self.token, self.rows, self.first = token, rows, first
        self.drafted: list[tuple[int, int]] = []  # row, nodes

    def start(self, request: Request) -> None:
        pass

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        drafts = []
        for request, depth in zip(requests, depths, strict=True):
            builder = TreeBuilder(request.tokens[-1])
            if depth > 1 and request.max_nodes > 4:
                with_token = request.row in self.rows and request.emitted >= self.first
                builder.add_path(0, [self.token if with_token else 5, 7], "made")
                builder.add_path(0, [6, 8], "made")
            drafts.append(builder.build())
            self.drafted.append((request.row, len(drafts[-1])))
        return drafts

    def observe(self, *step: Any) -> None:
        pass

    def pause(self) -> None:
        """Nothing is timed."""

    def stop(self, request: Request) -> None:
        pass

    def end(self) -> dict[str, int]:
        return {}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TokenDrafter]:
    """Makes the drafter that all calls of the test use."""

    def make(*args: Any) -> TokenDrafter:
        drafter = TokenDrafter(*args)
        monkeypatch.setattr("lade.engine.decoding.drafter_for", lambda *_: drafter)
        return drafter

    return make


def assert_plain(model: PreTrainedModel, lengths: tuple[int, ...], theirs: Any = None, **kwargs: Any) -> None:
    kwargs = words(*lengths) | GREEDY | {"return_dict_in_generate": True} | kwargs
    torch.manual_seed(1)
    theirs = theirs or model.generate(**kwargs)
    torch.manual_seed(1)
    ours = lade.generate(model, **kwargs)
    assert lade.last_stats().fallback is None
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    for own, stock in zip(ours.past_key_values.layers, theirs.past_key_values.layers, strict=True):
        assert_close(own.keys, stock.keys, rtol=1e-4, atol=1e-4)
        assert_close(own.values, stock.values, rtol=1e-4, atol=1e-4)


@pytest.mark.compat
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("name", "value"),
    [*((name, torch.nan) for name in NAMES), *product(("llama", "gpt2"), (torch.inf, -torch.inf))],  # one of each norm
)
def test_a_drafted_token_that_is_not_finite(
    name: str, value: float, attention: str, made: Callable[..., TokenDrafter]
) -> None:
    """The text and the cache are plain decoding's; the row that drafted it drafts no more, the others go on."""
    if attention not in BY_NAME[name].attention:
        pytest.skip("transformers has no such attention for it")
    model, token = not_finite(name, value, attention)
    drafter = made(token, (0,), 3)
    assert_plain(model, (9,), plain(name, attention, model.dtype, (9,)))
    widths = [nodes for _, nodes in drafter.drafted]
    assert 1 <= len(widths) <= 3
    assert set(widths) == {5}
    assert lade.last_stats().steps > len(widths) + 1  # after a draft with that token the drafter is not asked
    drafter = made(token, (1,), 5)
    assert_plain(model, (9, 4, 6), plain(name, attention, model.dtype, (9, 4, 6)))
    wide = Counter(row for row, nodes in drafter.drafted if nodes > 1)
    assert wide[1] < min(wide[0], wide[2])


@pytest.mark.parametrize("name", ["llama", "mistral-sliding"])
def test_samples_beside_a_token_that_is_not_finite(name: str, made: Callable[..., TokenDrafter]) -> None:
    model, token = not_finite(name, torch.nan)
    sampling = {"do_sample": True, "suppress_tokens": [token]}
    for first, lengths in ((0, (9,)), (4, (9, 4, 6))):
        made(token, (0,), first)
        assert_plain(model, lengths, **sampling)
        assert_plain(model, lengths, **sampling, output_scores=True)


@pytest.mark.parametrize("mode", ["auto", "lookahead"])
@pytest.mark.parametrize("name", ["llama", "mistral-sliding"])
def test_drafters_that_come_upon_it(name: str, mode: str) -> None:
    """The prompt holds the token where nothing sees it any more, or a reference does: real drafters draft it."""
    model, token = not_finite(name, torch.nan)
    kwargs = words(9, 4) | GREEDY
    theirs = model.generate(**kwargs)
    text = theirs[0, 9:].tolist()
    reference = [*text[:6], token, *text[6:]] if mode == "auto" else None
    config = lade.LookaheadConfig(mode=mode, **({} if reference else {"ngram": 4, "window": 5, "seed": token}))
    more = {"reference": reference} if reference else {}
    ours = lade.generate(model, **kwargs, config=config, **more)
    assert lade.last_stats().fallback is None
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_filling_of_narrower_trees(name: str, made: Callable[..., TokenDrafter]) -> None:
    """Smaller trees of a batch are filled up with nodes that cannot make their logits NaN, whatever token 0 is."""
    model = copy.deepcopy(tiny_model(BY_NAME[name]))
    with torch.no_grad():
        model.get_input_embeddings().weight[0] = torch.nan
    model.get_output_embeddings().weight.data[0] = -100 * model.get_output_embeddings().weight.data[1:].mean(0)
    drafter = made(5, (), 0)
    narrow = drafter.draft

    def draft(requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        return [
            made if request.row else roots([request])[0]
            for request, made in zip(requests, narrow(requests, depths), strict=True)
        ]

    drafter.draft = draft
    assert_plain(model, (9, 9, 9), suppress_tokens=[0])
    assert {nodes for _, nodes in drafter.drafted} >= {5}


def test_a_model_that_says_nan_itself(made: Callable[..., TokenDrafter]) -> None:
    """Plain decoding comes to the token: its own NaN is the text's, and no step is taken twice for ever."""
    model, token = not_finite("llama", torch.nan)
    batch = words(9)
    batch["input_ids"][0, 4] = token
    drafter = made(5, (), 0)
    ours = lade.generate(model, **batch, **GREEDY)
    assert ours.tolist() == model.generate(**batch, **GREEDY).tolist()
    assert [nodes for _, nodes in drafter.drafted].count(5) == 1


@pytest.mark.parametrize("kind", [lade.DraftModel, lade.MultiCandidate])
@pytest.mark.parametrize("name", ["llama", "mistral-sliding"])
def test_a_drafting_model_that_says_nan(name: str, kind: Any) -> None:
    """It draws its drafts from its own logits: after a token that is not finite there, from no law at all."""
    model, draft = tiny_model(BY_NAME[name]), copy.deepcopy(tiny_model(BY_NAME[name]))
    probed = {(7919 * index + 13) % 64 for index in range(15)}
    batch = words(9, 4)
    with torch.no_grad():
        for token in set(range(3, 64)) - probed - set(batch["input_ids"].flatten().tolist()):
            draft.get_input_embeddings().weight[token] = torch.nan
    for more in ({}, {"output_scores": True, "return_dict_in_generate": True}):
        torch.manual_seed(2)
        lade.generate(model, **batch, do_sample=True, max_new_tokens=16, method=kind(draft), **more)
        stats = lade.last_stats()
        assert stats.fallback is None
        assert stats.new_tokens == 32
    theirs = model.generate(**batch, **GREEDY)
    assert lade.generate(model, **batch, **GREEDY, method=kind(draft)).tolist() == theirs.tolist()
