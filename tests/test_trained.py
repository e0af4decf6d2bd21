"""Trained models: the texts of plain decoding, greedy and sampled, one at a time and in batches."""

from typing import Any

import pytest
from identity import Identity, plain_text
from stories import PROMPTS, local, local_prompts
from trained import FROM_PROMPT, LARGE, NEW_TOKENS, SMALL, Trained, greedy, sampled

import lade
import lade.models

CONFIGS = {"5/7/7": SMALL, "7/20/20 + prompt": LARGE}
SAMPLING = {"pure": {"top_k": 0}, "warped": {"temperature": 0.7, "top_k": 40, "top_p": 0.9}}


# The model that ships


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def story(request: pytest.FixtureRequest) -> Trained:
    return Trained(*lade.models.load("stories260K", attn_implementation=request.param))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_greedy(story: Trained, config: lade.LookaheadConfig, identity: Identity) -> None:
    greedy(story, PROMPTS[:3], config, identity, max_new_tokens=32)


def test_greedy_in_batches(story: Trained, identity: Identity) -> None:
    greedy(story, PROMPTS[3:8], LARGE, identity, rows=5, max_new_tokens=32)


def test_greedy_to_the_end_of_the_story(shipped: Any, identity: Identity) -> None:
    """Past the first end of a text, through the next story, on a text of 500 tokens."""
    story = Trained(*shipped)
    kwargs = story.encode(PROMPTS[:1])
    kwargs |= {"max_new_tokens": 512 - kwargs["input_ids"].shape[1]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(story.model.generation_config, "eos_token_id", None)
        ours = lade.generate(story.model, **kwargs, config=LARGE, do_sample=False)
        identity.check(ours, plain_text(story.model, **kwargs))
    assert ours.shape[1] == 512


def test_greedy_in_float64(identity: Identity) -> None:
    """No tie is granted here."""
    story = Trained(*lade.models.load("stories260K", dtype="float64"))
    greedy(story, PROMPTS[3:6], LARGE, identity, max_new_tokens=32)


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("rows", [1, 5])
def test_samples(rows: int, sampling: dict[str, Any], shipped: Any) -> None:
    sampled(Trained(*shipped), PROMPTS[:5], LARGE, rows, max_new_tokens=24, **sampling)


# Story prompts, on models that are at hand; `benchmarks/laws.py --stories` takes more prompts, and the model that ships

MODELS = ("stories3M-draft", "stories3M", "code8M")
ALONE, IN_BATCHES = 3, 8  # prompts
ONE_OF_EACH = pytest.mark.parametrize(
    "trained", ["stories3M", "code8M"], indirect=True
)  # a small and a large vocabulary


@pytest.fixture(scope="module", params=MODELS)
def trained(request: pytest.FixtureRequest) -> tuple[Trained, int]:
    return Trained(*lade.models.load(local("models", request.param), dtype="float32")), NEW_TOKENS[request.param]


@pytest.mark.slow
@pytest.mark.parametrize("trained", ["stories3M-draft", "code8M"], indirect=True)  # stories3M: tests/test_steps.py
def test_greedy_on_story_prompts(trained: tuple[Trained, int], identity: Identity) -> None:
    greedy(trained[0], local_prompts()[:ALONE], SMALL, identity, max_new_tokens=trained[1])


@pytest.mark.slow
@ONE_OF_EACH
def test_greedy_on_story_prompts_in_batches(trained: tuple[Trained, int], identity: Identity) -> None:
    greedy(trained[0], local_prompts()[:IN_BATCHES], FROM_PROMPT, identity, rows=8, max_new_tokens=trained[1])


@pytest.mark.slow
@ONE_OF_EACH
def test_samples_on_story_prompts(trained: tuple[Trained, int]) -> None:
    settings = {"temperature": 0.7, "top_p": 0.9, "max_new_tokens": trained[1]}
    sampled(trained[0], local_prompts()[:IN_BATCHES], FROM_PROMPT, rows=8, **settings)
