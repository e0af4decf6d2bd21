"""Prompts for the story models, and where optional local data lies. Knows nothing of lade.

Local data is the folder named by LADE_DATA, else a folder `shared` beside the repository: models/NAME are models in
transformers' format, data/story_prompts/prompts.jsonl holds one {"prompt": ...} per line.
"""

import json
import os
from pathlib import Path

import pytest

PROMPTS = (
    "Once upon a time, there was a little girl named Lily.",
    "Tom had a big red ball.",
    "One day, a bird saw a cat in the tree.",
    "Ben and Mia went to the park with their mom.",
    "The sun was hot and the dog was thirsty.",
    "Once upon a time, in a small house, there lived an old man.",
    "Sara likes to draw. She has many",
    "A frog sat on a log. It wanted to jump",
    "Max was sad because he lost his toy car.",
    "The little boat went up and down on the water.",
)
ENDS = {"eos_token_id": [1, 2], "pad_token_id": 0}  # the story models end a text with the token that begins one


def local(*parts: str) -> Path:
    """A file or folder of the local data; the test is skipped where there is none."""
    root = Path(os.environ.get("LADE_DATA") or Path(__file__).parents[2] / "shared")
    path = root.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no local data: {'/'.join(parts)} is neither in LADE_DATA nor in ../shared")
    return path


def local_prompts() -> list[str]:
    lines = local("data", "story_prompts", "prompts.jsonl").read_text().splitlines()
    return [json.loads(line)["prompt"] for line in lines]
