"""The text in a row of the user's tables, and what can be wrong with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tasks.contract import UserError
from tasks.corpus_lines import too_long
from tasks.strict_yaml import cut


def check_column(text_field: str, names: list[str], place: str) -> None:
    """Raise :class:`UserError`, beginning with ``place``, unless just one of the columns is called ``text_field``."""
    if text_field not in names:
        raise UserError(_missing(text_field, names, place))
    if names.count(text_field) > 1:
        raise UserError(f"{place}: {names.count(text_field)} columns are called '{text_field}'; rename the others")


def text_of(row: dict[str, Any], text_field: str, place: str, longest: int) -> str:
    """The text of a row, or a :class:`UserError` that begins with ``place``.

    Args:
        row: values by name.
        text_field: which one is the text.
        place: file and line.
        longest: most bytes of it in UTF-8.
    """
    text = row.get(text_field)
    if not isinstance(text, str):
        if text_field not in row:
            raise UserError(_missing(text_field, row, place))
        kind = "empty (null); fill it in" if text is None else f"not text but {type(text).__name__}; set text_field"
        raise UserError(f"{place}: the field '{text_field}' is {kind}, or leave such rows out by on_error: skip")
    if "\0" in text:
        raise UserError(f"{place}: a NUL character in the field '{text_field}'; mend the text")
    if 4 * len(text) > longest and (size := len(text.encode())) > longest:
        raise UserError(f"{place}: {too_long(size, longest)}")
    return text


def _missing(text_field: str, names: Iterable[Any], place: str) -> str:
    there = ", ".join(name if name.isprintable() and name == name.strip() else ascii(name) for name in map(str, names))
    return f"{place}: no field '{text_field}'; there are {cut(there)}: set text_field"
