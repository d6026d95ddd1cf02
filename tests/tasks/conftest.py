"""What several of the stages' tests need."""

from collections.abc import Callable, Iterable, Iterator

import pytest
from tokenizers import Tokenizer

from tasks.tokenizer_building import build_tokenizer, set_vocabulary
from tasks.tokenizer_definition import TokenizerDefinition
from tasks.tokenizer_fitting import fit_vocabulary
from tasks.tokenizer_words import count_words


@pytest.fixture(scope="session")
def dask_address() -> Iterator[str]:
    """The address of a Dask scheduler with two workers, each a process of one thread."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address=None,
        worker_dashboard_address=None,
    ) as cluster:
        yield cluster.scheduler_address


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
