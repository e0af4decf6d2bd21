"""Models inside a pipeline or a PEFT adapter reach lookahead."""

import copy

import peft
import pytest
import torch
from families import BY_NAME
from sidebyside import CONFIG, NEW_TOKENS, PROMPT, assert_looked_ahead, story
from tiny import tiny_model, words
from transformers import pipeline

import lade


@pytest.fixture
def drafting(default_settings: None, augmented: None) -> None:
    """Drafts in every step, whatever steps cost here."""
    lade.config_lade(ADAPT=0, BUDGET=16)


@pytest.mark.usefixtures("drafting")
def test_pipeline() -> None:
    pipe = pipeline("text-generation", model=story()[0], tokenizer=story()[1])
    kwargs = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "return_full_text": False}
    ours = pipe(PROMPT, **kwargs)
    assert_looked_ahead()
    lade.restore_all()
    assert ours == pipe(PROMPT, **kwargs)


@pytest.mark.usefixtures("drafting")
@pytest.mark.parametrize("name", ["llama", "mistral-sliding"])
def test_peft(name: str) -> None:
    settings = peft.LoraConfig(task_type="CAUSAL_LM", r=4, init_lora_weights=False, target_modules=["q_proj", "v_proj"])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = peft.get_peft_model(copy.deepcopy(tiny_model(BY_NAME[name], "sdpa")), settings).eval()
    kwargs = words(9) | {"do_sample": False, "max_new_tokens": NEW_TOKENS}
    ours = model.generate(**kwargs)
    assert_looked_ahead()
    assert lade.generate(model, **kwargs, config=CONFIG).tolist() == ours.tolist()
    assert_looked_ahead()
    lade.restore_all()
    assert ours.tolist() == model.generate(**kwargs).tolist()
    assert ours.tolist() != tiny_model(BY_NAME[name], "sdpa").generate(**kwargs).tolist()
