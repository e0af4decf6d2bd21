"""The small shipped models: their names, their folder, and a prompt for each.

Knows no model class and reads no file.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "pretrained"
TARGET, DRAFT = "lade-code-8M", "lade-code-8M-draft"  # a pair: one tokenizer
STORIES = "stories260K"

FUNCTION = '''def pairs_with_sum(numbers, total):
    """ Write a function to count the pairs of numbers in a list that add up to a given sum.
    >>> pairs_with_sum([1, 2, 3], 4)
    1
    """
'''
STORY = "Once upon a time, there was a little girl named Lily. She loved to play outside with her friends."
PROMPTS = {TARGET: FUNCTION, DRAFT: FUNCTION, STORIES: STORY}
NAMES = tuple(PROMPTS)


def prompt_for(path_or_name: str | Path | None) -> str:
    """The default prompt: that of the shipped model with this name, else a function."""
    return PROMPTS.get(Path(path_or_name or TARGET).name, FUNCTION)
