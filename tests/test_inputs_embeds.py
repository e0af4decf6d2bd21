"""Prompts given as embeddings, as models that read images give them to their language model: the text is plain
decoding's, and lookahead really wrote it, from the answer alone."""

from typing import Any

import pytest
import torch
from families import BY_NAME
from sidebyside import assert_falls_back, assert_looked_ahead, augmented
from tiny import tiny_model, words
from transformers import Blip2Config, Blip2ForConditionalGeneration, PreTrainedModel, StaticCache

import lade
from lade.target.call import Call, longest_text, tokens_beside

NEW_TOKENS = 25
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW_TOKENS}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "sampled": {"do_sample": True, "temperature": 0.4, "num_return_sequences": 2, "max_new_tokens": NEW_TOKENS},
    "processed": GREEDY | {"suppress_tokens": [7, 20], "return_dict_in_generate": True, "output_scores": True},
}
MODES: dict[str, dict[str, Any]] = {
    "auto": {"MODE": "auto", "BUDGET": 24, "ADAPT": False},  # the clock decides nothing
    "lookahead": {"MODE": "lookahead", "LEVEL": 4, "WINDOW_SIZE": 5, "GUESS_SET_SIZE": 5, "POOL_FROM_PROMPT": True},
}


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch, default_settings: None) -> None:
    monkeypatch.delenv("USE_LADE", raising=False)


def llama() -> PreTrainedModel:
    return tiny_model(BY_NAME["llama"], "sdpa")


def embedded(model: PreTrainedModel, *lengths: int) -> dict[str, torch.Tensor]:
    prompt = words(*lengths)
    with torch.no_grad():
        return prompt | {"inputs_embeds": model.get_input_embeddings()(prompt["input_ids"])}


def texts(model: PreTrainedModel, inputs: dict[str, Any], **kwargs: Any) -> list[Any]:
    """Plain decoding's, and lade's."""
    found = []
    for scope in (torch.no_grad(), augmented()):
        torch.manual_seed(5)
        with scope:
            text = model.generate(**inputs, **kwargs)
        found.append(getattr(text, "sequences", text).tolist())
    return found


def without_ids(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in inputs.items() if name != "input_ids"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lengths", [(9,), (5, 9, 3)], ids=str)
def test_same_text(lengths: tuple[int, ...], way: str, mode: str) -> None:
    model = tiny_model(BY_NAME["mistral-sliding"], "sdpa")
    inputs = embedded(model, *lengths)
    for given in (without_ids(inputs), inputs):
        lade.config_lade(**MODES[mode])  # the end of `augmented` resets it
        plain, ours = texts(model, given, **WAYS[way])
        assert ours == plain
        assert_looked_ahead()


def test_a_continued_cache() -> None:
    """Embeddings are those of the whole text; what the cache holds of them is not computed again."""
    model = llama()
    inputs, found = without_ids(embedded(model, 9)), []
    for scope in (torch.no_grad(), augmented()):
        with scope:
            first = model.generate(**inputs, do_sample=False, max_new_tokens=5, return_dict_in_generate=True)
            new = model.get_input_embeddings()(torch.cat([first.sequences, words(4)["input_ids"]], dim=1))
            whole = torch.cat([inputs["inputs_embeds"], new.detach()], dim=1)
            mask = torch.ones(whole.shape[:2], dtype=torch.long)
            again = {"inputs_embeds": whole, "attention_mask": mask, "past_key_values": first.past_key_values}
            found.append(model.generate(**again, **GREEDY).tolist())
    assert found[0] == found[1]
    assert_looked_ahead()


def test_a_model_that_asks_its_language_model() -> None:
    """BLIP-2 gives what it sees as embeddings."""
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Blip2Config(
        vision_config=tower | {"image_size": 16, "patch_size": 8},
        qformer_config=tower | {"encoder_hidden_size": 16, "vocab_size": 64},
        text_config=tiny_model(BY_NAME["opt"], "sdpa").config.to_dict(),
        num_query_tokens=4,
        image_token_index=60,
    )
    torch.manual_seed(0)
    model = Blip2ForConditionalGeneration(config).eval()
    model.language_model.load_state_dict(tiny_model(BY_NAME["opt"], "sdpa").state_dict())
    ids = torch.cat([torch.full((1, 4), 60), words(9)["input_ids"].clamp(max=59)], dim=1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.randn(1, 3, 16, 16)}
    plain, ours = texts(model, inputs, **GREEDY)
    assert ours == plain
    assert_looked_ahead()


# What decodes plainly


def test_other_lengths() -> None:
    model = llama()
    inputs = embedded(model, 9)
    inputs["input_ids"] = inputs["input_ids"][:, :4]
    assert_falls_back(model, lambda: inputs | GREEDY, "inputs_embeds of 9 tokens beside input_ids of 4")


def test_a_static_cache_that_is_too_small() -> None:
    """The embeddings count too: 9 and 24 of the 25 new tokens are computed."""
    model = llama()
    inputs = without_ids(embedded(model, 9))
    plain, ours = texts(model, inputs, **GREEDY)
    assert ours == plain
    with augmented():
        large = StaticCache(model.config, max_cache_len=33)
        assert model.generate(**inputs, **GREEDY, past_key_values=large).tolist() == plain
        assert_looked_ahead()
        small = StaticCache(model.config, max_cache_len=32)
        with pytest.warns(lade.FallbackWarning, match="static cache of 32 tokens"), pytest.raises(IndexError):
            model.generate(**inputs, **GREEDY, past_key_values=small)


def test_methods() -> None:
    """A draft model reads tokens; skipped layers read the model's own cache."""
    model = llama()
    inputs = without_ids(embedded(model, 9)) | GREEDY
    plain = model.generate(**inputs).tolist()
    drafting = lade.decoding_method(method=lade.DraftModel(model))
    with pytest.warns(lade.FallbackWarning, match="input_ids of shape"):
        assert model.generate(**inputs, custom_generate=drafting).tolist() == plain
    skipping = lade.decoding_method(method=lade.SelfSpeculative(((1,), (0,))))
    assert model.generate(**inputs, custom_generate=skipping).tolist() == plain
    assert lade.last_stats().fallback is None


def test_tokens_beside_the_text() -> None:
    model = llama()
    for width, beside in ((0, 9), (9, 0)):
        ids = torch.zeros(1, width, dtype=torch.long)
        call = Call(model, ids, [], [], model.generation_config, False, {"inputs_embeds": torch.zeros(1, 9, 32)})
        assert tokens_beside(call) == beside
        assert longest_text(call) == float("inf")
