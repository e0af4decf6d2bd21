"""The pair's tokenizer: byte-level BPE in which every digit is a token of its own.

Knows texts and token ids; knows no model.
"""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from lade.base.shown import invalid

END, USER, ASSISTANT, PAD = SPECIAL = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|pad|>")  # ids 0 to 3
SMALLEST = len(SPECIAL) + 256  # every byte has a token


def train_tokenizer(texts: Iterable[str], vocabulary: int = 8192) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `vocabulary` entries; `END`, id 0, precedes every encoded text."""
    if vocabulary < SMALLEST:
        raise invalid("vocabulary", f"at least {SMALLEST}, the bytes and special tokens", vocabulary)
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return _opening(core)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """A saved tokenizer with the same special tokens; `END` precedes every encoded text."""
    if not (folder / "tokenizer.json").is_file():
        raise FileNotFoundError(f"{folder}: holds no tokenizer.json")
    core = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if [core.id_to_token(number) for number in range(len(SPECIAL))] != list(SPECIAL):
        raise ValueError(f"{folder}: its first tokens are not {', '.join(SPECIAL)}")
    return _opening(core)


def _opening(core: Tokenizer) -> PreTrainedTokenizerFast:
    core.post_processor = processors.TemplateProcessing(single=f"{END} $A", special_tokens=[(END, 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=END, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
