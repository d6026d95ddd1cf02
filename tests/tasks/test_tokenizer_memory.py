from __future__ import annotations

from pathlib import Path

import pytest

from tasks import tokenizer_memory
from tasks.contract import StageError
from tasks.tokenizer_memory import available_memory, check_memory, training_bytes


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_memory() > 10_000_000
    (tmp_path / "max").write_text("5000\n")
    (tmp_path / "current").write_text("2000\n")
    (tmp_path / "memory.stat").write_text("anon 1000\nfiles 800\n")
    monkeypatch.setattr(tokenizer_memory, "_CGROUPS", ((str(tmp_path / "max"), str(tmp_path / "current"), "files"),))
    assert available_memory() == 3800
    (tmp_path / "max").write_text("max\n")
    assert available_memory() > 10_000_000


def test_the_remedy_says_how_much_text_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_memory, "available_memory", lambda: 1_000_000_000)
    check_memory(1_000_000_000, "training", 5)
    with pytest.raises(StageError) as caught:
        check_memory(4_000_000_000, "training", 800_000_000)
    assert str(caught.value) == (
        "tokenizer: training takes about 4.00 GB of memory and 1.00 GB are available: set "
        "tokenizer.sample_characters to 100000000 or less, or use a machine with more memory"
    )


def test_more_words_and_more_seeds_take_more() -> None:
    assert training_bytes(2000, 100) > training_bytes(1000, 100)
    assert training_bytes(2000, 200) > training_bytes(2000, 100)
    assert training_bytes(50, 10**9) == training_bytes(50, 50)
