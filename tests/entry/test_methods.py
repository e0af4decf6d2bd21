"""Methods that draft with a model: plain decoding's text through every way in, and errors that name the argument."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from families import BY_NAME, VOCAB
from identity import Identity, PlainText, plain_text
from stories import ENDS, PROMPTS, local
from tiny import tiny_model, words
from trained import Trained, greedy
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel

import lade
from lade.engine.method import Method
from lade.models import load
from lade.models.widen import own_sizes, widen

NAMES = ("llama", "mistral-sliding", "gemma3", "gpt2", "opt")
LENGTHS = (12, 5, 9, 1, 7)
NEW_TOKENS = 20
SKIPPED = ((1,), (0,))


def tiny(name: str, **kwargs: Any) -> PreTrainedModel:
    return tiny_model(BY_NAME[name], BY_NAME[name].attention[-1], **kwargs)


def perturbed(model: PreTrainedModel, noise: float = 0.02) -> PreTrainedModel:
    """A draft that agrees with the model often, not always."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * noise)
    return draft


METHODS: dict[str, Callable[[PreTrainedModel], Method]] = {
    "draft": lambda draft: lade.DraftModel(draft, tokens=3),
    "by acceptance": lambda draft: lade.DraftModel(draft, tokens=2, adapt="acceptance"),
    "by confidence": lambda draft: lade.DraftModel(draft, tokens=6, adapt="confidence", threshold=0.3),
    "candidates": lambda draft: lade.MultiCandidate(draft, widths=(3, 2, 1)),
    "self": lambda draft: lade.SelfSpeculative(SKIPPED, tokens=4),
}


@pytest.fixture(autouse=True)
def no_fallback() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", lade.FallbackWarning)
        yield


# Greedy


@cache
def plain(name: str) -> PlainText:
    return plain_text(tiny(name), **words(*LENGTHS), max_new_tokens=NEW_TOKENS)


def until_ends(name: str) -> dict[str, Any]:
    """Greedy settings under which the first two rows end inside their texts, at different times."""
    texts = plain(name).sequences[:, max(LENGTHS) :]
    ends = [int(texts[0, 6]), int(texts[1, 14])]
    return {"do_sample": False, "max_new_tokens": NEW_TOKENS, "eos_token_id": ends}


@cache
def plain_until_ends(name: str) -> list[list[int]]:
    written: list[list[int]] = tiny(name).generate(**words(*LENGTHS), **until_ends(name)).tolist()
    return written


@pytest.mark.compat
@pytest.mark.parametrize(
    ("name", "method"), [*product(NAMES[:1], METHODS), *product(NAMES[1:], ("draft", "candidates", "self"))]
)
def test_each_row_as_plainly(name: str, method: str, identity: Identity) -> None:
    model, batch = tiny(name), words(*LENGTHS)
    kwargs = batch | {"max_new_tokens": NEW_TOKENS, "do_sample": False}
    ours = lade.generate(model, **kwargs, method=METHODS[method](perturbed(model)))
    identity.check(ours, plain(name))
    assert lade.last_stats().accepted_tokens > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["llama", "mistral-sliding"])
def test_rows_end_at_their_own_ends(name: str, method: str) -> None:
    """An end inside an accepted run; rows leave at different times and the draft's rows with them."""
    model = tiny(name)
    ours = lade.generate(model, **words(*LENGTHS), **until_ends(name), method=METHODS[method](perturbed(model)))
    assert ours.tolist() == plain_until_ends(name)


@pytest.mark.parametrize("new_tokens", [1, 2, 3, 7])
def test_the_last_token_is_the_last(new_tokens: int) -> None:
    model, prompt = tiny("llama"), words(5)
    method = lade.DraftModel(model, tokens=4)
    expected = model.generate(**prompt, do_sample=False, max_new_tokens=new_tokens)
    ours = lade.generate(model, **prompt, do_sample=False, max_new_tokens=new_tokens, method=method)
    assert ours.tolist() == expected.tolist()


def test_a_perfect_draft_is_accepted_whole() -> None:
    """4 tokens and the one behind them per step: 1 + 4 · 5."""
    model = tiny("llama")
    lade.generate(model, **words(5), do_sample=False, max_new_tokens=21, method=lade.DraftModel(model, tokens=4))
    assert lade.last_stats().steps == 4
    assert lade.last_stats().accepted == {"draft": 16}
    assert lade.last_stats().acceptance_rate == 1.0


@pytest.mark.parametrize("widths", [(1, 1, 1), (2, 2, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_a_perfect_draft_in_a_batch(name: str, widths: tuple[int, ...]) -> None:
    """Rows of all lengths, leaving at different times: the draft's rows stay with their requests, to the last token."""
    model = tiny(name)
    method = lade.MultiCandidate(model, widths=widths)
    ours = lade.generate(model, **words(*LENGTHS), **until_ends(name), method=method)
    assert ours.tolist() == plain_until_ends(name)
    stats = lade.last_stats()
    # A draft that ends the text is not followed to its node.
    assert stats.accepted_tokens >= sum(stats.verified_by_depth.values()) - len(LENGTHS)


def test_more_candidates_are_accepted_more_often() -> None:
    model = tiny("llama")
    draft, rates = perturbed(model, 0.05), []
    for widths in ((1, 1, 1), (2, 1, 1), (4, 2, 2)):
        lade.generate(
            model,
            **words(9, 9, 9),
            do_sample=False,
            max_new_tokens=60,
            method=lade.MultiCandidate(draft, widths=widths),
        )
        rates.append(lade.last_stats().tokens_per_step)
    assert rates[0] < rates[1] < rates[2]


def test_nothing_left_out_is_accepted_whole() -> None:
    model = tiny("llama")
    method = lade.SelfSpeculative(((), ()), tokens=4, adapt="fixed")
    lade.generate(model, **words(5), do_sample=False, max_new_tokens=21, method=method)
    assert lade.last_stats().steps == 4


def test_a_streamer_gets_every_token_once() -> None:
    model, tokens = tiny("llama"), []

    class Recorder:
        def put(self, value: torch.Tensor) -> None:
            tokens.append(value.tolist())

        def end(self) -> None:
            tokens.append("end")

    out = lade.generate(
        model, **words(5), do_sample=False, max_new_tokens=9, streamer=Recorder(), method=lade.DraftModel(model)
    )
    assert tokens == [out[:, :5].tolist(), *([token] for token in out[0, 5:].tolist()), "end"]


def test_stop_strings_processors_and_scores() -> None:
    """Once per token, as plainly."""
    model, tokenizer = load("stories260K")
    inputs = tokenizer(PROMPTS[0], return_tensors="pt")
    kwargs = {
        "do_sample": False,
        "max_new_tokens": 60,
        "repetition_penalty": 1.2,
        "return_dict_in_generate": True,
        "output_scores": True,
        "stop_strings": ["big", "the"],
        "tokenizer": tokenizer,
    }
    plain = model.generate(**inputs, **kwargs)
    ours = lade.generate(model, **inputs, **kwargs, method=lade.DraftModel(perturbed(model, 0.01)))
    assert ours.sequences.tolist() == plain.sequences.tolist()
    assert len(ours.scores) == len(plain.scores)
    assert max((a - b).abs().nan_to_num().max().item() for a, b in zip(ours.scores, plain.scores, strict=True)) < 1e-3
    assert lade.last_stats().accepted_tokens > 0


def test_a_draft_that_runs_out_of_positions() -> None:
    """Its rows fall silent; the text goes on."""
    model = tiny("llama")
    config = tiny("gpt2").config.to_dict() | {"n_positions": 20}
    torch.manual_seed(0)
    short = AutoModelForCausalLM.from_config(type(tiny("gpt2").config).from_dict(config)).eval()
    for lengths in ((12, 5), (25, 3), (30,)):
        kwargs = words(*lengths) | {"do_sample": False, "max_new_tokens": NEW_TOKENS}
        ours = lade.generate(model, **kwargs, method=lade.DraftModel(short, tokens=3))
        assert ours.tolist() == model.generate(**kwargs).tolist()


@pytest.mark.parametrize("entries", [40, 90])
def test_vocabularies_of_two_sizes(entries: int) -> None:
    """Padding that only one of the two has is never drafted and never read."""
    model, draft = tiny("llama"), perturbed(tiny("llama"))
    draft.resize_token_embeddings(entries)
    with torch.no_grad():
        draft.lm_head.weight[64:] = 100.0  # what is beyond the target would be likeliest
    for sampling in ({"do_sample": False}, {"do_sample": True}):
        for method in (lade.DraftModel(draft, tokens=3), lade.MultiCandidate(draft, widths=(3, 2))):
            lade.generate(model, **words(9, 4), **sampling, max_new_tokens=NEW_TOKENS, method=method)
            assert lade.last_stats().fallback is None
    ours = lade.generate(model, **words(9), do_sample=False, max_new_tokens=9, method=lade.DraftModel(draft))
    assert ours.tolist() == model.generate(**words(9), do_sample=False, max_new_tokens=9).tolist()


@pytest.mark.parametrize("method", METHODS)
def test_a_users_cache_is_extended(method: str) -> None:
    """Going on from it equals generating in one go."""
    model = tiny("llama")
    way, cache = METHODS[method](perturbed(model)), DynamicCache(config=model.config)
    kwargs = {"do_sample": False, "method": way}
    expected = model.generate(**words(9), do_sample=False, max_new_tokens=20)
    part = lade.generate(model, words(9)["input_ids"], max_new_tokens=8, past_key_values=cache, **kwargs)
    assert cache.get_seq_length() == part.shape[1] - 1
    assert lade.generate(model, part, max_new_tokens=12, past_key_values=cache, **kwargs).tolist() == expected.tolist()


# Sampled


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("kind", [lade.DraftModel, lade.MultiCandidate, "self"])
def test_certain_drafts_leave_seeded_text_alone(name: str, kind: Any) -> None:
    model = tiny(name)
    draft = perturbed(model)
    method = lade.SelfSpeculative(SKIPPED, likeliest=True) if kind == "self" else kind(draft, likeliest=True)
    kwargs = words(*LENGTHS) | {"do_sample": True, "temperature": 0.5, "top_k": 8, "max_new_tokens": NEW_TOKENS}
    torch.manual_seed(5)
    expected = model.generate(**kwargs)
    torch.manual_seed(5)
    assert lade.generate(model, **kwargs, method=method).tolist() == expected.tolist()
    assert lade.last_stats().accepted_tokens > 0


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_gives_its_text_again(method: str) -> None:
    model = tiny("llama")
    way = METHODS[method](perturbed(model))
    kwargs = words(*LENGTHS) | {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "max_new_tokens": NEW_TOKENS}
    texts = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        texts.append(lade.generate(model, **kwargs, method=way).tolist())
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("method", "penalty"),
    [*product(METHODS, [{}]), *product(("draft", "candidates"), [{"repetition_penalty": 1.3}])],  # token by token
)
def test_sampling_one_token_is_greedy(method: str, penalty: dict[str, float]) -> None:
    """top_k=1 leaves one text, whatever is drawn."""
    model = tiny("llama")
    kwargs = words(*LENGTHS) | {"max_new_tokens": NEW_TOKENS} | penalty
    expected = model.generate(**kwargs, do_sample=False)
    ours = lade.generate(model, **kwargs, do_sample=True, top_k=1, method=METHODS[method](perturbed(model)))
    assert ours.tolist() == expected.tolist()
    assert lade.last_stats().accepted_tokens > 0


# Trained models


@pytest.fixture(scope="module")
def story(shipped: Any) -> Trained:
    return Trained(*shipped)


@pytest.mark.parametrize("method", METHODS)
def test_the_shipped_model(method: str, story: Trained, identity: Identity) -> None:
    way = METHODS[method](perturbed(story.model, 0.01))
    greedy(story, PROMPTS[:2], None, identity, method=way, max_new_tokens=32, **ENDS)


@pytest.fixture(scope="module")
def pair() -> tuple[Trained, PreTrainedModel]:
    model, draft = (AutoModelForCausalLM.from_pretrained(local("models", n)) for n in ("stories3M", "stories3M-draft"))
    return Trained(model, AutoTokenizer.from_pretrained(local("models", "stories3M"))), draft


@pytest.mark.parametrize("method", ["draft", "candidates", "self"])
def test_the_story_pair(method: str, pair: tuple[Trained, PreTrainedModel], identity: Identity) -> None:
    way = METHODS[method](pair[1])
    found = greedy(pair[0], PROMPTS[:4], None, identity, rows=4, method=way, max_new_tokens=64, **ENDS)
    assert found.tokens_per_step > 1.5


def test_identity_layers_may_be_left_out() -> None:
    """Of a deepened model the layers that do nothing: every token is accepted."""
    model, tokenizer = load("stories260K")
    sizes = own_sizes(model)
    deep = widen(model, **sizes | {"num_layers": sizes["num_layers"] + 2})
    extra = tuple(range(sizes["num_layers"], sizes["num_layers"] + 2))
    kwargs = dict(tokenizer(PROMPTS[0], return_tensors="pt")) | {"max_new_tokens": 31, "do_sample": False}
    ours = lade.generate(deep, **kwargs, method=lade.SelfSpeculative((extra, extra), tokens=5, adapt="fixed"))
    assert ours.tolist() == model.generate(**kwargs).tolist()
    assert lade.last_stats().acceptance_rate == 1.0
    assert lade.last_stats().steps == 5


@pytest.fixture(scope="module")
def wide(shipped: Any) -> PreTrainedModel:
    """Twice the sizes."""
    sizes = own_sizes(shipped[0])
    doubled = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    larger = {name: 2 * sizes[name] for name in doubled} | {"vocab_size": sizes["vocab_size"] + 7}
    return widen(shipped[0], **sizes | larger)


@pytest.mark.parametrize("method", ["draft", "self"])
def test_a_widened_model_writes_the_small_ones_text(method: str, wide: PreTrainedModel, story: Trained) -> None:
    """The small model, disturbed, drafts for the wide one."""
    kwargs = story.encode(PROMPTS[1:2]) | {"max_new_tokens": 40, "do_sample": False}
    ours = lade.generate(wide, **kwargs, method=METHODS[method](perturbed(story.model, 0.01)))
    assert ours.tolist() == story.model.generate(**kwargs).tolist() == wide.generate(**kwargs).tolist()
    assert lade.last_stats().accepted_tokens > 0


# Ways in


def test_all_ways_in(augmented: None) -> None:
    model = tiny("llama")
    method = lade.DraftModel(perturbed(model), tokens=3)
    kwargs = words(7) | {"do_sample": False, "max_new_tokens": 12}
    expected = lade.generate(model, **kwargs, method=method).tolist()
    first = lade.last_stats().accepted
    assert set(first) == {"draft"}
    with lade.lookahead(model, method=method):
        assert model.generate(**kwargs).tolist() == expected
        assert lade.last_stats().accepted == first
    assert model.generate(**kwargs).tolist() == expected
    assert "draft" not in lade.last_stats().proposed
    assert model.generate(**kwargs, custom_generate=lade.decoding_method(method=method)).tolist() == expected
    assert lade.last_stats().accepted == first


def test_a_draft_that_cannot_take_part_is_a_fallback() -> None:
    model, draft = tiny("llama"), perturbed(tiny("llama"))
    kwargs = words(7) | {"do_sample": False, "max_new_tokens": 6}
    expected = model.generate(**kwargs)
    draft.train()
    with pytest.warns(lade.FallbackWarning, match="the draft model cannot draft: the model is in training mode"):
        assert lade.generate(model, **kwargs, method=lade.DraftModel(draft)).tolist() == expected.tolist()
    assert lade.last_stats().fallback is not None


# Errors


def test_wrong_options_are_named() -> None:
    draft = tiny("llama")
    cases: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: lade.DraftModel("gpt2"), "draft must be a transformers model that can generate, got 'gpt2'"),
        (lambda: lade.DraftModel(None), "draft must be a transformers model that can generate, got None"),
        (lambda: lade.DraftModel(draft, tokens=0), "tokens must be an integer of at least 1 .*, got 0"),
        (lambda: lade.DraftModel(draft, tokens=257), "tokens must be an integer .* at most 256, got 257"),
        (
            lambda: lade.DraftModel(draft, adapt="often"),
            "adapt must be one of 'fixed', 'acceptance', 'confidence', got 'often'",
        ),
        (lambda: lade.DraftModel(draft, threshold=1.5), "threshold must be a number from 0 to 1, got 1.5"),
        (lambda: lade.DraftModel(draft, likeliest="yes"), "likeliest must be True, False, 1 or 0, got 'yes'"),
        (lambda: lade.MultiCandidate(draft, widths=()), r"widths must be a tuple .*, got \(\)"),
        (lambda: lade.MultiCandidate(draft, widths=[2, 2]), r"widths must be a tuple .*, got \[2, 2\]"),  # type: ignore[arg-type]
        (lambda: lade.MultiCandidate(draft, widths=(16, 16)), r"widths must be .* at most 256 nodes, got \(16, 16\)"),
        (lambda: lade.MultiCandidate(draft, replacement=3), "replacement must be .*, got 3"),  # type: ignore[arg-type]
        (lambda: lade.SelfSpeculative(3), "layers must be .*, got 3"),
        (
            lambda: lade.SelfSpeculative(((1, 0), ())),
            r"layers\.attention must be a tuple of ascending .*, got \(1, 0\)",
        ),
        (lambda: lade.SelfSpeculative(((), (-1,))), r"layers\.mlp must be .*, got \(-1,\)"),
    )
    for make, message in cases:
        with pytest.raises(ValueError, match=message):
            make()


def test_what_does_not_go_together_is_named() -> None:
    model = tiny("llama")
    method, prompt = lade.DraftModel(model), words(5)
    large = tiny_model(replace(BY_NAME["qwen2"], config=BY_NAME["qwen2"].config | {"vocab_size": VOCAB + 2000}))
    with pytest.raises(ValueError, match=r"draft must have the target's tokenizer, .* got 64 entries"):
        lade.generate(large, **prompt, method=method)
    with pytest.raises(ValueError, match="config must be None with method=DraftModel, got LookaheadConfig"):
        lade.generate(model, **prompt, method=method, config=lade.LookaheadConfig())
    with pytest.raises(ValueError, match=r"reference must be None with method=DraftModel, got \[1, 2\]"):
        lade.generate(model, **prompt, method=method, reference=[1, 2])
    with pytest.raises(ValueError, match=r"method must be a lade\.DraftModel, .* or None, got 'fast'"):
        lade.generate(model, **prompt, method="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"layers\.mlp must be layers from 0 to 1, got \(2,\)"):
        lade.generate(model, **prompt, method=lade.SelfSpeculative(((), (2,))))
    with pytest.raises(ValueError, match="warm"), lade.lookahead(model, method=method, warm=True):
        pass
    with pytest.raises(ValueError, match="share keys and values"):
        lade.generate(tiny("gemma4"), **prompt, method=lade.SelfSpeculative(((0,), ())))
