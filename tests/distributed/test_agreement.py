"""Ranks whose calls differ: an error on all of them, or every rank decodes for itself; never a hang or a mixed text."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from forks import needs_fork
from multimodal import BY_TYPE, image_model, image_prompt
from tiny import own_llama, words
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer

import lade
from lade.distributed import agreement
from lade.entry.submission import prepared
from lade.target.nextinputs import tensors_in

LLAVA = BY_TYPE["llava"]
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12}
SAMPLED: dict[str, Any] = {"do_sample": True, "max_new_tokens": 12, "top_k": 0}
SHARED = lade.LookaheadConfig(workers=2, timeout=30, adapt=False)
pytestmark = needs_fork


class Draws(BaseStreamer):
    """Draws a random number per token."""

    def put(self, value: torch.Tensor) -> None:
        torch.rand(1)

    def end(self) -> None:
        pass


def text(model: PreTrainedModel, settings: lade.LookaheadConfig | None = SHARED, **arguments: Any) -> Any:
    """With the seed that all ranks share."""
    torch.manual_seed(3)
    inputs = words(9) | arguments
    found = model.generate(**inputs) if settings is None else lade.generate(model, **inputs, config=settings)
    return getattr(found, "sequences", found).tolist()


def on_both(folder: Path, work: Callable[[PreTrainedModel, int], Any]) -> Any:
    """What both ranks return, or the error of each; afterwards they share a call."""
    model = own_llama()

    def run(rank: int) -> Any:
        try:
            found = work(model, rank)
        except lade.RankError as error:
            found = str(error)
        model.load_state_dict(own_llama().state_dict())
        shared = text(model.eval(), **GREEDY), lade.last_stats().fallback, lade.last_stats().accepted_tokens > 0
        return found, shared

    (first, after), (second, after_second) = ranks.run(folder, 2, run)
    assert after == after_second == [text(model, None, **GREEDY), None, True]
    return first, second


UNEQUAL: dict[str, Callable[[PreTrainedModel, int], Any]] = {
    "processor": lambda model, rank: text(model, **GREEDY, suppress_tokens=[30 + rank]),
    "prefill": lambda model, rank: text(model, **GREEDY, prefill_chunk_size=3 + rank),
    "images": lambda model, rank: described(rank),
    "weights": lambda model, rank: (model.apply(redrawn if rank else kept), text(model, **GREEDY))[1],
}


def described(seed: int) -> Any:
    """The text behind an image, whose tokens are those of any other image."""
    inputs = image_prompt(LLAVA, 9) | LLAVA.image(seed)
    return lade.generate(image_model(LLAVA), **inputs, **GREEDY, config=SHARED).tolist()


def redrawn(module: torch.nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        torch.nn.init.normal_(parameter)


def kept(module: torch.nn.Module) -> None:
    pass


@pytest.mark.parametrize(
    "kind", ["processor", "images", *(pytest.param(each, marks=pytest.mark.real) for each in ("prefill", "weights"))]
)
def test_calls_that_differ(tmp_path: Path, kind: str) -> None:
    for found in on_both(tmp_path, UNEQUAL[kind]):
        assert "all ranks must make the same call" in found


def test_images_that_differ_by_rounding_are_the_same() -> None:
    """As two machines encode them; one number that is another one is another image."""
    call = prepared(image_model(LLAVA), **image_prompt(LLAVA, 9), **GREEDY)
    tensors = [each for each in tensors_in(call.model_kwargs) if each.is_floating_point()]
    assert tensors
    own = agreement._beside(call)
    assert own.any()
    digest = torch.zeros(agreement.DIGEST, dtype=torch.int64)
    for tensor in tensors:
        tensor *= 1.001
    assert not agreement._beside(call).equal(own)
    assert agreement._alike(torch.cat([digest, own]), torch.cat([digest, agreement._beside(call)]))
    for tensor in tensors:
        tensor *= -1
    assert not agreement._alike(torch.cat([digest, own]), torch.cat([digest, agreement._beside(call)]))
    assert not agreement._alike(torch.cat([digest, own]), torch.cat([digest + 1, own]))
    assert not agreement._beside(prepared(own_llama(), **words(9), **GREEDY)).any()


@pytest.mark.real
def test_one_rank_that_records_scores(tmp_path: Path) -> None:
    """All decode for themselves."""
    scores = {"output_scores": True, "return_dict_in_generate": True}

    def work(model: PreTrainedModel, rank: int) -> Any:
        return text(model, **GREEDY, **(scores if rank else {})), lade.last_stats().fallback

    assert on_both(tmp_path, work) == ([text(own_llama(), None, **GREEDY), None],) * 2


def test_one_rank_that_decodes_plainly(tmp_path: Path) -> None:
    """All do."""

    def work(model: PreTrainedModel, rank: int) -> Any:
        model.train(rank == 1)
        with pytest.warns(lade.FallbackWarning):
            return text(model, **GREEDY), lade.last_stats().fallback

    plain = text(own_llama(), None, **GREEDY)
    first, second = on_both(tmp_path, work)
    assert first == [plain, "rank 1 does, and its warning tells why"]
    assert second == [plain, "the model is in training mode (call model.eval())"]


@pytest.mark.parametrize("which", [pytest.param((0,), marks=pytest.mark.real), (0, 1)], ids=len)
def test_streamers_that_draw(tmp_path: Path, which: tuple[int, ...]) -> None:
    """A rank's text is that of plain decoding with its streamer, from the generator of rank 0."""
    streamed = lambda rank: {"streamer": Draws() if rank in which else None}  # noqa: E731
    found = on_both(tmp_path, lambda model, rank: text(model, **SAMPLED, **streamed(rank)))
    plain = text(own_llama(), None, **SAMPLED, streamer=Draws())
    assert [found[rank] for rank in which] == [plain] * len(which)


@pytest.mark.real
def test_several_threads(tmp_path: Path) -> None:
    """Of each rank, with the same prompt."""

    def work(model: PreTrainedModel, rank: int) -> Any:
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(text(model, **GREEDY))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    assert on_both(tmp_path, work) == ([text(own_llama(), None, **GREEDY)] * 3,) * 2
