from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def test_the_docs_have_the_table_that_the_command_prints(benchmark_script: Callable[[str], ModuleType]) -> None:
    damage = benchmark_script("damage")
    assert damage.table() in (ROOT / "docs" / "tokenizers.md").read_text(encoding="utf-8")
    # Nothing is lost in the last column, and something in every other one.
    rows = [line.strip("| ").split(" | ") for line in damage.table().splitlines()[2:]]
    assert len(rows) == 10
    for column in (1, 2, 3):
        assert any(row[column] != row[0] for row in rows)
    assert [row[4] for row in rows] == [damage.visible(unicodedata.normalize("NFC", word)) for word in damage.WORDS]
