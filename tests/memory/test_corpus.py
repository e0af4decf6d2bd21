"""A corpus against its definition, looked up in quadratic time: the longest suffix in a text, and what followed it."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from occurrences import STREAMS, TEXTS, occurrences
from rowarrays import halves, memory_of, place, predicted, row_of, write

import lade
from lade.base.compiled import viewed
from lade.files import safefile
from lade.memory import automaton, corpora, corpus, corpusfile
from lade.memory.corpora import corpus_of, index_of, moves_of, states_of
from lade.memory.corpus import FALLS, LENGTH, OFTEN, STATE, following, frequent, read_on
from lade.memory.corpus import occurrences as counted
from lade.memory.corpusfile import Corpus, load_corpus
from lade.memory.row import CORPUS_MATCH, IN_CORPUS, NODES, WIDTH
from lade.memory.stages import AGAIN, CORPUS, CORPUS_OFTEN, LONG, ONCE, match_bucket

pytestmark = pytest.mark.usefixtures("as_python")

CORPORA = st.lists(TEXTS, min_size=1, max_size=5).filter(any)
VOCABULARY = 9


def times(texts: Sequence[list[int]], string: list[int]) -> int:
    """How often it occurs."""
    return sum(len(occurrences(text, string)) for text in texts)


def longest(texts: Sequence[list[int]], text: list[int], least: int = 1) -> list[int]:
    """The longest suffix of a text that occurs so often."""
    suffixes = (text[start:] for start in range(len(text)))
    return next((suffix for suffix in suffixes if times(texts, suffix) >= least), [])


def shares(texts: Sequence[list[int]], string: list[int]) -> dict[int, float]:
    """What follows a string; the end of a text is one of its followers."""
    followers = Counter(text[end] for text in texts for end in occurrences(text, string) if end < len(text))
    return {token: number / times(texts, string) for token, number in followers.items()}


def after(ints: Any, state: int) -> dict[int, float]:
    tokens, masses = [0] * 8, [0.0] * 8
    number = following(ints, state, tokens, masses)
    assert masses[:number] == sorted(masses[:number], reverse=True)
    return dict(zip(tokens[:number], masses[:number], strict=True))


@given(CORPORA, st.lists(STREAMS | TEXTS, max_size=3))
def test_a_match_is_the_longest_suffix_in_any_text(texts: list[list[int]], outputs: list[list[int]]) -> None:
    ints, output, match = viewed(corpus_of(texts)), [token for each in outputs for token in each], [0, 0]
    for end, token in enumerate(output, 1):
        read_on(ints, match, 0, token, 0)
        suffix = longest(texts, output[:end])
        assert match[LENGTH] == len(suffix)
        if suffix:
            assert counted(ints, match[STATE]) == times(texts, suffix)
            assert after(ints, match[STATE]) == shares(texts, suffix)
            often, state = longest(texts, suffix, OFTEN), frequent(ints, match[STATE])
            assert (state == 0) == (not often)
            if often:
                assert after(ints, state) == shares(texts, often)


def test_only_the_most_frequent_followers_are_predicted() -> None:
    texts = [[1, token] for token in range(2, 14) for _ in range(token)]
    ints, match = viewed(corpus_of(texts)), [0, 0]
    read_on(ints, match, 0, 1, 0)
    assert [*after(ints, match[STATE])] == [13, 12, 11, 10, 9, 8, 7, 6]


def test_a_search_has_an_end() -> None:
    """A string of one token has as many suffix links as tokens."""
    ints, match = viewed(corpus_of([[1] * (FALLS + 2), [1, 2]])), [0, 0]
    for _ in range(FALLS + 2):
        read_on(ints, match, 0, 1, 0)
    assert match[LENGTH] == FALLS + 2
    read_on(ints, match, 0, 2, 0)
    assert match == [0, 0]


@given(CORPORA, TEXTS, TEXTS, TEXTS)
def test_a_request_follows_its_prompt_its_output_and_its_paths(
    texts: list[list[int]], prompt: list[int], output: list[int], path: list[int]
) -> None:
    memory = halves(memory_of([*prompt, 0], corpus=corpus_of(texts), only=["corpus", "corpus-often"]))
    write(memory, output)
    text = [*prompt, 0, *output]
    node = place(memory, path[:4])
    row = row_of(memory)
    own = [*row.ints[IN_CORPUS : IN_CORPUS + corpus.FIELDS]]
    assert own[LENGTH] == len(longest(texts, text))
    suffix = longest(texts, text + path[:4])
    at = row.ints[NODES] + node * WIDTH + CORPUS_MATCH
    assert row.ints[at + LENGTH] == len(suffix)
    bucket, tokens, masses = predicted(memory, CORPUS, node)
    assert dict(zip(tokens, masses, strict=True)) == (shares(texts, suffix) if suffix else {})
    if suffix:
        assert bucket == match_bucket(len(suffix)) + (ONCE if times(texts, suffix) == 1 else AGAIN)
    often = longest(texts, suffix, OFTEN)
    bucket, tokens, masses = predicted(memory, CORPUS_OFTEN, node)
    assert dict(zip(tokens, masses, strict=True)) == (
        shares(texts, often) if often and times(texts, suffix) < OFTEN else {}
    )


def test_a_long_prompt_is_matched_by_its_end() -> None:
    text = [*range(1, 3 * LONG)]
    memory = memory_of(text, corpus=corpus_of([text]))
    assert row_of(memory).ints[IN_CORPUS + LENGTH] == LONG


def test_without_a_corpus_nothing_is_predicted() -> None:
    memory = memory_of([1, 2])
    place(memory)
    assert predicted(memory, CORPUS)[1] == predicted(memory, CORPUS_OFTEN)[1] == []


@pytest.mark.parametrize("texts", [[], [[]], [[], []]])
def test_a_corpus_has_tokens(texts: list[list[int]], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"texts must hold 1 to 10,000,000 tokens, got 0"):
        Corpus(texts).save(tmp_path / "corpus.safetensors")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("texts", [[[1] * 4, [2] * 3], [[1] * 99], [[1]] * 7])
def test_a_corpus_has_a_bound(texts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "MOST", 6)
    with pytest.raises(ValueError, match="texts must hold 1 to 6 tokens"):
        corpus_of(texts)
    corpus_of([[1] * 4, [], [2] * 2])


# Files


@given(CORPORA)
def test_a_file_holds_a_corpus_exactly(tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]]) -> None:
    path = tmp_path_factory.mktemp("corpus") / "corpus.safetensors"
    Corpus(texts).save(path)
    found = load_corpus(path, VOCABULARY)
    assert found.ints.tolist() == corpus_of(texts).tolist()
    assert found.vocabulary == max(map(max, filter(None, texts))) + 1


def test_texts_are_token_ids_in_any_form(tmp_path: Path) -> None:
    path = tmp_path / "corpus.safetensors"
    Corpus([torch.tensor([1, 2]), np.array([2, 3]), (4, 5), [6]]).save(path)  # type: ignore[list-item]
    assert load_corpus(path, VOCABULARY).ints.tolist() == corpus_of([[1, 2], [2, 3], [4, 5], [6]]).tolist()


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "corpus.safetensors"
    Corpus([[1, 2]]).save(path)
    first = Corpus.load(path)
    assert load_corpus(str(path), VOCABULARY) is first
    assert first.digest() == Corpus([[1, 2]]).digest()
    Corpus([[1, 2, 3]]).save(path)
    assert load_corpus(path, VOCABULARY).digest() != first.digest()


@pytest.mark.parametrize("text", ["ab", [1.0], [True], [-1], [2**31], 3, None, [[1]], torch.tensor([0.5])])
def test_what_is_no_text(text: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^texts must be lists of token ids, which are integers of at least 0, got "):
        Corpus([[1], text]).save(tmp_path / "corpus.safetensors")
    assert not [*tmp_path.iterdir()]


def test_another_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "corpus.safetensors"
    Corpus([[1, 8]]).save(path)
    load_corpus(path, 9)
    with pytest.raises(
        ValueError, match=r"^corpus='.*': its tokens must be below 8, the size of the vocabulary, got 8"
    ):
        load_corpus(path, 8)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^corpus='.*none': there is no such file"):
        load_corpus(tmp_path / "none", VOCABULARY)
    with pytest.raises(OSError, match=r"^path='.*a directory"):
        Corpus.load(tmp_path)


@pytest.mark.parametrize("path", [3, None, "", "a\0", b"a"])
@pytest.mark.parametrize("use", [Corpus.load, Corpus([[1]]).save])
def test_what_is_no_path(use: Callable[[Any], Any], path: Any) -> None:
    with pytest.raises(ValueError, match=r"^path must be a path, as text or as pathlib\.Path, got "):
        use(path)


TEXT = [[1, 2, 1, 3], [1, 2]]


def tables() -> dict[str, np.ndarray]:
    ints = corpus_of(TEXT)
    return {"states": states_of(ints).copy(), "moves": moves_of(ints).copy(), "index": index_of(ints).copy()}


def put(path: Path, tables: dict[str, np.ndarray], **metadata: str) -> None:
    known = {"kind": corpusfile.KIND, "format": corpusfile.FORMAT}
    safefile.write(path, {name: torch.from_numpy(table) for name, table in tables.items()}, known | metadata)


@pytest.mark.parametrize(
    ("table", "row", "column", "value"),
    [
        ("states", 0, automaton.LINK, 0),
        ("states", 0, automaton.LENGTH, 1),
        ("states", 1, automaton.LINK, -1),
        ("states", 1, automaton.LINK, 99),
        ("states", 2, automaton.LINK, 2),
        ("states", 3, automaton.LENGTH, 0),
        ("states", 1, corpus.COUNT, 0),
        ("states", 1, corpus.COUNT, 999),
        ("moves", 0, automaton.FROM, -1),
        ("moves", 0, automaton.FROM, 1),
        ("moves", -1, automaton.FROM, 99),
        ("moves", 1, automaton.TO, 0),
        ("moves", 1, automaton.TO, 99),
        ("moves", 1, automaton.TOKEN, -2),
        ("moves", 1, automaton.TOKEN, VOCABULARY),
        ("moves", 1, corpus.TIMES, 0),
        ("moves", 1, corpus.TIMES, 99),
    ],
)
def test_a_wrong_value_is_refused(table: str, row: int, column: int, value: int, tmp_path: Path) -> None:
    """A file that anybody may have made: what leads outside a table, or round in circles, is not followed."""
    path, changed = tmp_path / "corpus.safetensors", tables()
    put(path, changed)
    load_corpus(path, VOCABULARY)
    changed[table][row, column] = value
    put(path, changed)
    with pytest.raises(ValueError, match=r"^corpus='"):
        load_corpus(path, VOCABULARY)


def test_moves_out_of_order_are_refused(tmp_path: Path) -> None:
    path, changed = tmp_path / "corpus.safetensors", tables()
    put(path, changed | {"moves": changed["moves"][::-1].copy()})
    with pytest.raises(ValueError, match="a move is out of place"):
        load_corpus(path, VOCABULARY)


@pytest.mark.parametrize(
    ("index", "value"), [(slice(0, 1), 99), (slice(0, 1), -2), (slice(None), 0), (slice(0, 40), 0)]
)
def test_a_wrong_index_is_refused(index: slice, value: int, tmp_path: Path) -> None:
    path, changed = tmp_path / "corpus.safetensors", tables()
    changed["index"][index] = value
    put(path, changed)
    with pytest.raises(ValueError, match="its index is not one of its moves"):
        load_corpus(path, VOCABULARY)


@pytest.mark.parametrize("slots", [63, 96])
def test_an_index_has_a_power_of_two_of_slots(slots: int, tmp_path: Path) -> None:
    path = tmp_path / "corpus.safetensors"
    put(path, tables() | {"index": np.full(slots, -1, np.int32)})
    with pytest.raises(ValueError, match="its index is not one of its moves"):
        load_corpus(path, VOCABULARY)


@pytest.mark.parametrize(
    ("changed", "metadata", "message"),
    [
        ({}, {"kind": "pool"}, "it is not a corpus"),
        ({}, {"format": "0"}, "it must be of format 1, got 0"),
        ({"more": np.zeros(1, np.int32)}, {}, "missing or unknown"),
        ({"states": np.zeros((0, 4), np.int32)}, {}, "its first state is not the root"),
        ({"moves": np.zeros((0, 4), np.int32)}, {}, "a move is out of place"),
        ({"moves": np.zeros((1, 3), np.int32)}, {}, "the wrong shapes or dtypes"),
        ({"states": np.zeros((1, 4), np.int64)}, {}, "the wrong shapes or dtypes"),
    ],
)
def test_another_file(changed: dict[str, np.ndarray], metadata: dict[str, str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "corpus.safetensors"
    put(path, tables() | changed, **metadata)
    with pytest.raises(ValueError, match=f"^corpus='.*': .*{message}"):
        load_corpus(path, VOCABULARY)


def test_saved_by_its_public_name() -> None:
    assert lade.Corpus is Corpus
