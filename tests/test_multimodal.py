"""Images and sound are read with the prompt: the text is plain decoding's, and lookahead really wrote it."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from identity import Identity, plain_text
from multimodal import BY_TYPE, FOUR_AXES, IMAGE, KINDS, OWN_MASKS, OWN_POSITIONS, Kind, image_model, image_prompt, text
from sidebyside import assert_falls_back, assert_looked_ahead
from transformers import GemmaConfig, PaliGemmaConfig, PaliGemmaForConditionalGeneration, SiglipVisionConfig

import lade
from lade.target.nextinputs import NextInputs, next_inputs, one_position_will_do

NEW_TOKENS = 30
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW_TOKENS}
AUTO = lade.LookaheadConfig(mode="auto", budget=24, adapt=False)  # the clock decides nothing
COMPAT = "llava", "gemma3", "mistral3", "qwen2_vl"
EACH = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=kind.model_type, marks=[pytest.mark.compat] if kind.model_type in COMPAT else [])
        for kind in KINDS
    ],
)
QWEN = BY_TYPE["qwen2_vl"]


@EACH
def test_with_an_image(kind: Kind, identity: Identity) -> None:
    """Alone, and after a text without one, for which some models forget where the image ended."""
    model = image_model(kind)
    for prompt in (image_prompt(kind, 9), text(9), image_prompt(kind, 5, seed=1)):
        ours = lade.generate(model, **prompt, **GREEDY, config=AUTO)
        identity.check(ours, plain_text(model, **prompt, max_new_tokens=NEW_TOKENS))
        assert_looked_ahead()


@EACH
def test_padded_batches(kind: Kind, identity: Identity) -> None:
    """With images and without: a row's padding is none of its positions, on any axis."""
    model = image_model(kind)
    for prompt in (image_prompt(kind, 9, 4, 7), text(9, 4)):
        ours = lade.generate(model, **prompt, **GREEDY, config=AUTO)
        identity.check(ours, plain_text(model, **prompt, max_new_tokens=NEW_TOKENS))
        assert_looked_ahead()


@EACH
def test_images_matter(kind: Kind) -> None:
    """As the other tests take for granted: behind another image the model predicts other tokens."""
    model, prompt = image_model(kind), image_prompt(kind, 9)
    others = prompt | {name: 3 - value for name, value in kind.image(0).items() if value.is_floating_point()}
    with torch.no_grad():
        one, other = (model(**each).logits[:, -1].softmax(-1) for each in (prompt, others))
    assert (one - other).abs().max() > 0.01


@pytest.mark.parametrize("name", ["llava", "qwen3_vl"])
def test_seeded_samples(name: str) -> None:
    model, prompt = image_model(BY_TYPE[name]), image_prompt(BY_TYPE[name], 9)
    kwargs: dict[str, Any] = {
        "do_sample": True,
        "temperature": 0.3,
        "num_return_sequences": 2,
        "max_new_tokens": NEW_TOKENS,
    }
    texts = []
    for decode in (model.generate, lambda **inputs: lade.generate(model, **inputs, config=AUTO)):
        torch.manual_seed(3)
        texts.append(decode(**prompt, **kwargs).tolist())
    assert texts[0] == texts[1]
    assert_looked_ahead()


def test_continued_with_the_cache() -> None:
    """A second call takes the cache of the first one, whose image lies in it."""
    model, prompt = image_model(QWEN), image_prompt(QWEN, 9)
    texts = []
    for decode in (model.generate, lambda **inputs: lade.generate(model, **inputs, config=AUTO)):
        first = decode(**prompt, **GREEDY, return_dict_in_generate=True)
        ids = torch.cat([first.sequences, text(4)["input_ids"]], dim=1)
        texts.append(decode(input_ids=ids, past_key_values=first.past_key_values, **GREEDY).tolist())
    assert texts[0] == texts[1]
    assert_looked_ahead()


def test_warm_table_behind_an_image(table_folder: Path, identity: Identity) -> None:
    """The model remembers where the image of its last call ended, and no text of the table begins there."""
    model = copy.deepcopy(image_model(QWEN))
    before = lade.warm_up(model, top=4)
    for file in table_folder.glob("warm*"):
        file.unlink()
    prompt = image_prompt(QWEN, 9)
    model.generate(**prompt, **GREEDY)
    assert lade.warm_up(model, top=4).digest == before.digest
    ours = lade.generate(model, **prompt, **GREEDY, config=AUTO)
    identity.check(ours, plain_text(model, **prompt, max_new_tokens=NEW_TOKENS))


# What decodes plainly


def test_an_image_at_the_end() -> None:
    """Its tokens have unequal positions, so has what comes next."""
    prompt = image_prompt(QWEN, 9)
    end = int((prompt["input_ids"][0] == IMAGE).nonzero().max()) + 1
    cut = prompt | {name: prompt[name][:, :end] for name in ("input_ids", "attention_mask", "mm_token_type_ids")}
    assert_falls_back(image_model(QWEN), lambda: cut | GREEDY, "unequal positions")


def test_inputs_of_every_step() -> None:
    """As Mllama's cross-attention takes them."""
    prompt = image_prompt(QWEN, 9)
    kwargs = {"use_cache": True, "cross_attention_mask": prompt["attention_mask"]} | prompt
    inputs = next_inputs(image_model(QWEN), kwargs.pop("input_ids"), kwargs)
    assert inputs.unknown == ["cross_attention_mask"]


def test_four_axes() -> None:
    assert_falls_back(image_model(FOUR_AXES), lambda: text(9) | GREEDY, "positions on 4 axes")


def test_positions_that_only_the_model_knows(identity: Identity) -> None:
    """It counts the tokens of the cache: padding too, and of an image what it likes."""
    model = image_model(OWN_POSITIONS)
    assert_falls_back(model, lambda: text(9, 4) | GREEDY, "positions that the model finds by itself")
    ours = lade.generate(model, **text(9), **GREEDY, config=AUTO)
    identity.check(ours, plain_text(model, **text(9), max_new_tokens=NEW_TOKENS))
    assert_looked_ahead()


def test_masks_that_the_model_builds_by_itself() -> None:
    """The reason names the model, not the language model in it."""
    model = image_model(OWN_MASKS)
    for prompt in (image_prompt(OWN_MASKS, 9), text(9)):
        assert_falls_back(model, lambda prompt=prompt: prompt | GREEDY, "paligemma builds attention masks of its own")  # type: ignore[misc]


def test_static_steps() -> None:
    """Behind an image there are fewer positions than tokens."""
    prompt = image_prompt(QWEN, 9)
    ours = lade.generate(image_model(QWEN), **prompt, **GREEDY, config=replace(AUTO, static=True))
    assert ours.tolist() == image_model(QWEN).generate(**prompt, **GREEDY).tolist()
    assert lade.last_stats().not_static is None
    assert "static" in lade.last_stats().attention


def test_contrast_reads_text() -> None:
    model, prompt = image_model(BY_TYPE["llava"]), image_prompt(BY_TYPE["llava"], 9)
    with pytest.raises(ValueError, match="contrast must be None for a call with more than text, got "):
        lade.generate(model, **prompt, **GREEDY, contrast=lade.Contrast(model))


# What the forwards behind a prompt get


def test_positions_by_the_models_own_code() -> None:
    """PaliGemma counts from 1."""
    gemma = GemmaConfig(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, head_dim=8)
    config = PaliGemmaConfig(text_config=gemma, vision_config=SiglipVisionConfig(num_hidden_layers=1))
    ids = text(9)["input_ids"]
    positions = torch.arange(9)[None]
    inputs = next_inputs(PaliGemmaForConditionalGeneration(config), ids, {"position_ids": positions, "use_cache": True})
    assert inputs.of_roots(2) == [10, 10]


@pytest.mark.parametrize(
    ("positions", "roots"),
    [
        ([[3], [5]], [3, 5]),
        ([[4]], [4, 4]),
        ([[[3], [5]]] * 3, [3, 5]),
        ([[[9], [9]], *[[[3], [5]]] * 3], [3, 5]),
        ([[[9], [9]], *[[[3], [5]]] * 2], None),
        ([[[3], [5]], [[3], [5]], [[3], [6]]], None),
    ],
    ids=["rows", "one for all", "three axes", "an index and three axes", "three unequal axes", "one row unequal"],
)
def test_positions_of_roots(positions: list[Any], roots: list[int] | None) -> None:
    assert NextInputs(torch.tensor(positions), []).of_roots(2) == roots


def test_four_axes_that_all_rotate(monkeypatch: pytest.MonkeyPatch) -> None:
    """One position stands for four only where the first of them rotates nothing."""
    model = image_model(QWEN)
    assert one_position_will_do(model, 4)
    decoder = model.model.language_model
    monkeypatch.setattr("lade.target.nextinputs._one_for_all", {})
    with monkeypatch.context() as patched:
        patched.setattr(decoder, "forward", lambda original=decoder.forward, **inputs: original(**_first_axis(inputs)))
        assert not one_position_will_do(model, 4)


def _first_axis(inputs: dict[str, Any]) -> dict[str, Any]:
    positions = inputs["position_ids"]
    return inputs | {"position_ids": positions[0] if positions.dim() > 2 else positions}
