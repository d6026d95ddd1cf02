"""Reading the corpus artifact."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from tokenizer_runs import write_corpus

from tasks.corpus_text import count_documents, read_texts


def test_reading_from_any_document_on(tmp_path: Path) -> None:
    texts = [str(i) for i in range(700)]
    corpus = write_corpus(tmp_path / "corpus", texts, ["x"], row_group_size=100)
    assert count_documents(corpus, "train") == 700
    assert count_documents(corpus, "test") == 0
    for first in (0, 1, 99, 100, 101, 256, 550, 699, 700):
        assert [text for batch in read_texts(corpus, "train", first=first) for text in batch] == texts[first:]
