"""What several of the stages' tests need."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tasks.tokenizer_building import build_tokenizer, save_tokenizer, set_vocabulary
from tasks.tokenizer_definition import TokenizerDefinition, load_definition
from tasks.tokenizer_fitting import fit_vocabulary
from tasks.tokenizer_words import count_words

sys.path.insert(0, str(Path(__file__).parent))
from packing_runs import text_of, write_corpus


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tokenizer]:
    """A tokenizer of a definition with a vocabulary of this size, learned from these texts."""

    def fit(
        definition: TokenizerDefinition, texts: Iterable[str], size: int, tokenizer: Tokenizer | None = None
    ) -> Tokenizer:
        tokenizer = build_tokenizer(definition) if tokenizer is None else tokenizer
        words = count_words([list(texts)], tokenizer)
        model, _ = fit_vocabulary(words, definition, size, tmp_path_factory.mktemp("fitting"))
        set_vocabulary(tokenizer, model, definition)
        return tokenizer

    return fit


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of the stage corpus with documents of 1 to 9 sentences, some of them without text."""
    train = [text_of(i, 1 + i % 9) for i in range(300)] + ["", "  ", "[SEP] <pad> [MASK]"]
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c", train, [text_of(900 + i, 5) for i in range(30)])


@pytest.fixture(scope="session")
def tokenizer(fitted: Callable[..., Tokenizer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of the stage tokenizer with 200 entries for such documents."""
    folder, definition = tmp_path_factory.mktemp("tokenizer"), load_definition("bengali-unigram-32k")
    save_tokenizer(fitted(definition, [text_of(i, 5) for i in range(200)], 200), definition, folder)
    return folder
