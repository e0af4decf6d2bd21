"""What a request used, and how its drafts fared, in the fields of OpenAI's API and of vLLM's metrics."""

from __future__ import annotations

from typing import Any

import lade
from lade.applications.serve.answer import Answer
from lade.core.tally import together

PREDICTION = "reference"  # the source that drafts from a prediction


def usage_of(answer: Answer) -> dict[str, Any]:
    """Tokens of all prompts and texts. A prompt that several texts share counts once."""
    prompts = [choice.request for choice in answer.choices[:: answer.per_prompt]]
    prompt = sum(request.prompt_length for request in prompts)
    new = sum(choice.request.emitted for choice in answer.choices if choice.most)
    accepted, rejected = _predicted(answer)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": sum(request.cached for request in prompts)},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": rejected,
        },
    }


def speculation_of(answer: Answer) -> dict[str, Any]:
    """The field `metrics` of an answer with one text whose drafts were switched on, as vLLM has it; else nothing."""
    requests = [choice.request for choice in answer.choices]
    if len(requests) != 1 or not requests[0].drafts:
        return {}
    return {"metrics": {"speculative_decoding": _speculation(requests[0])}}


def _speculation(request: lade.Request) -> dict[str, Any]:
    """Of a step that emits k tokens, k - 1 are accepted draft tokens."""
    lengths, proposed = request.tally.lengths, request.tally.proposed.total()
    steps, accepted = lengths.total(), request.tally.accepted.total()
    longest = max(lengths, default=1)
    return {
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "draft_acceptance_rate": accepted / proposed if proposed else 0.0,
        "acceptance_histogram": [lengths[size] for size in range(1, longest + 1)],
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": proposed,
        "num_spec_tokens": longest - 1,
        "accepted_by_source": dict(request.tally.accepted),
    }


def _predicted(answer: Answer) -> tuple[int, int]:
    """Draft tokens from the prediction that the model chose, and those that it was compared with and did not choose."""
    tally = together(choice.request.tally for choice in answer.choices)
    accepted = tally.accepted[PREDICTION]
    return accepted, tally.verified[PREDICTION] - accepted
