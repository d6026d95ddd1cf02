"""The texts of a CSV file, in which a row may have several lines, and a bad one must not spoil the rows behind it.

After an error the csv module takes the next line for the beginning of a row, even if that was inside quotes. So from a
bad line on, the quotes are followed here until its row has ended.
"""

from __future__ import annotations

import csv
import re
from typing import Literal

from tasks.contract import UserError
from tasks.corpus_fields import check_column, text_of
from tasks.corpus_lines import Lines

Quoting = Literal["start", "plain", "inside", "closing", "wrong"]
"""Where something stands: at the start of a field, in one without quotes, inside quotes, behind a quote there (which
ends them, unless another one follows), or behind an error."""

_NEXT: dict[Quoting, tuple[Quoting, Quoting, Quoting]] = {
    "start": ("inside", "start", "plain"),
    "plain": ("plain", "start", "plain"),
    "inside": ("closing", "inside", "inside"),
    "closing": ("inside", "start", "wrong"),
    "wrong": ("wrong", "wrong", "wrong"),
}
"""What that becomes after a quote, a comma, and anything else, as in the csv module's strict mode."""

_TOKENS = re.compile(rb'(")|(,)|[^",]+')


class CsvTexts:
    """The texts of a CSV file; the first row has the columns' names. A row that cannot be read raises
    :class:`UserError`, and the next call goes on after it.

    Args:
        lines: of the file.
        text_field: the column with the text.
        longest: most bytes of a text in UTF-8, and most characters of the other fields.
    """

    def __init__(self, lines: Lines, text_field: str, longest: int) -> None:
        # Also against a quote that is never closed. The module's own limit is less than a long document.
        csv.field_size_limit(longest)
        lines.refused = self._follow
        self._lines = lines
        self._rows = csv.reader(map(self._taken, lines), strict=True)
        self._field = text_field
        self._longest = longest
        self._header: list[str] | None = None
        self._ended = False
        self._line = ""
        self._quoting: Quoting = "start"

    def __iter__(self) -> CsvTexts:
        return self

    def __next__(self) -> str | None:
        if self._ended:
            raise StopIteration
        if self._header is None:
            self._ended = True  # without the columns' names there is nothing to read
            self._header = self._checked_header(self._row()[0])
            self._ended = False
        row, place = self._row()
        if not row:
            return None
        if len(row) > len(self._header):
            raise UserError(f"{place}: {len(row)} columns instead of {len(self._header)}; quote the text")
        values = dict(zip(self._header, [*row, *[None] * (len(self._header) - len(row))], strict=True))
        return text_of(values, self._field, place, self._longest)

    def _row(self) -> tuple[list[str], str]:
        """The next row, and file and line where it begins: a quote that is not closed may end it much later."""
        first = self._lines.number + 1
        place = f"{self._lines.name}:{first}"
        self._quoting = "start"
        try:
            return next(self._rows), place
        except UserError as error:
            problem, remedy = str(error), ""
        except csv.Error as error:
            problem, remedy = f"{place}: not CSV: {error}", "; check the quotes"
            if "field limit" in str(error):
                problem = f"{place}: a field of more than {self._longest:,} characters"
                remedy += ", or raise corpus.max_document_mb"
            self._quoting = "inside" if self._lines.number > first else "start"
            self._follow(self._line.encode())
        damage = self._pass_by_the_rest()
        last = self._lines.number
        within = f" (in the row of lines {first} to {last})" if last > first else ""
        raise UserError(f"{problem}{within}{remedy}{damage}")

    def _taken(self, line: str) -> str:
        """A line on its way to the csv module, which takes another one for the same row inside quotes only."""
        self._line = line
        self._quoting = "inside"
        return line

    def _follow(self, piece: bytes) -> None:
        for quote, comma in _TOKENS.findall(piece):
            self._quoting = _NEXT[self._quoting][0 if quote else 1 if comma else 2]

    def _pass_by_the_rest(self) -> str:
        """Read the lines of the row that are left; tells of damage to the file that ends it."""
        while self._quoting == "inside":
            try:
                self._follow(next(self._lines).encode())
            except StopIteration:
                break
            except UserError as error:  # another bad line, which was followed
                if self._lines.broken:
                    return f"; {error}"
        return ""

    def _checked_header(self, header: list[str]) -> list[str]:
        place = self._lines.place
        if not header:
            raise UserError(f"{place}: the first line is blank; write the names of the columns there")
        for separator in ";\t|":
            if self._field not in header and self._field in "".join(header).replace('"', "").split(separator):
                raise UserError(f"{place}: {separator!r} stands between the columns; write commas")
        check_column(self._field, header, place)
        return header
