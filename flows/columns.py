"""Rows of texts in columns, for a terminal or a file: no colours, no width to fit."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], alignment: str | None = None) -> list[str]:
    """One line a row, each column as wide as its widest text and two spaces from the next.

    Args:
        rows: all of the same length.
        alignment: a letter a column, "r" for those that are set flush right; by default none is.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    letters = alignment or "l" * len(widths)
    return [
        "  ".join(
            cell.rjust(width) if letter == "r" else cell.ljust(width)
            for cell, width, letter in zip(row, widths, letters, strict=True)
        ).rstrip()
        for row in rows
    ]
