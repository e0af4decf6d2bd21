"""`return_dict_in_generate`: the same fields as plain decoding returns, scores and logits per emitted token."""

import pytest
import torch
from sidebyside import PROMPT, PROMPTS, assert_looked_ahead, both, encode, story


@pytest.mark.compat
@pytest.mark.parametrize("texts", [(PROMPT,), PROMPTS], ids=("alone", "padded"))
@pytest.mark.parametrize("asked", [("output_scores",), ("output_logits",), ("output_scores", "output_logits"), ()])
def test_scores_and_logits(asked: tuple[str, ...], texts: tuple[str, ...]) -> None:
    kwargs = dict.fromkeys(asked, True) | {"return_dict_in_generate": True, "repetition_penalty": 1.1}
    theirs, ours = both(story()[0], lambda: encode(*texts), eos_token_id=511, **kwargs)
    assert type(ours) is type(theirs)
    assert ours.keys() == theirs.keys()
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    for name in ("scores", "logits"):
        expected, found = getattr(theirs, name), getattr(ours, name)
        assert (found is None) == (expected is None)
        if expected is not None:
            assert len(found) == len(expected)
            torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=1e-4, atol=1e-4)
    assert_looked_ahead()


def test_scores_of_samples() -> None:
    kwargs = {"return_dict_in_generate": True, "output_scores": True, "top_k": 5, "temperature": 0.5, "do_sample": True}
    theirs, ours = both(story()[0], lambda: encode(), **kwargs)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    torch.testing.assert_close(torch.stack(ours.scores), torch.stack(theirs.scores), rtol=1e-4, atol=1e-4)
