"""Reading documents from local files: ``.txt``, ``.jsonl``, ``.csv`` and ``.parquet``, each also compressed.

Files are read as a stream, and what cannot be read comes as an item of its own in its place, so that whoever reads
decides what becomes of it. Nothing longer than the limit for a document is ever held.
"""

from __future__ import annotations

import csv
import errno
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from tasks.contract import UserError
from tasks.corpus_lines import DAMAGED, MEGABYTE, Lines, decompressed, is_compressed, too_long
from tasks.user_files import COMPRESSIONS, json_object, shown

Format = Literal["txt", "jsonl", "csv", "parquet"]
TextDocuments = Literal["file", "line", "blank-line"]

SUFFIXES: dict[str, Format] = {".txt": "txt", ".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet"}

ROW_FACTOR = 2
"""A line of JSON or CSV may be this many times as long as a document: escapes double the bytes of most scripts."""

PARQUET_ROWS = 100
"""Rows read at once: few, since a document can be a whole book."""


@dataclass(frozen=True)
class Unreadable:
    """What stands in the place of a document that cannot be read; ``problem`` names file, line and remedy."""

    problem: str


Read = Iterator[tuple[str | Unreadable, float]]
"""Documents, each with the share of the file that was read when it came, 0 to 1."""


def format_of(path: Path, asked: Format | Literal["auto"], place: str) -> Format:
    """The format that was asked for or, for ``auto``, that the file's name says."""
    if asked != "auto":
        return asked
    suffix = Path(path.stem).suffix.lower() if is_compressed(path) else path.suffix.lower()
    if suffix not in SUFFIXES:
        known, packed = ", ".join(SUFFIXES), ", ".join(COMPRESSIONS)
        raise UserError(f"{place}: {shown(path)} does not end in {known} (or these and {packed}); set its format")
    return SUFFIXES[suffix]


def read_file(path: Path, format: Format, text_field: str, documents: TextDocuments, longest: int) -> Read:
    """The documents of one file.

    Args:
        path: the file.
        format: what it holds.
        text_field: the field or column of the text, in tables.
        documents: what a document is, in text files.
        longest: most bytes of a document in UTF-8.
    """
    if format == "parquet":
        yield from _read_parquet(path, text_field, longest)
        return
    with ExitStack() as opened:
        raw = opened.enter_context(path.open("rb"))
        size = max(1, path.stat().st_size)
        if is_compressed(path) and not raw.read(1):  # nothing, compressed, has a header: the libraries let this pass
            yield Unreadable(f"{shown(path)}: 0 bytes, which is no compressed file; copy it again"), 1.0
            return
        raw.seek(0)
        stream = decompressed(raw, path, opened)
        lines = Lines(stream, shown(path), longest if format == "txt" else ROW_FACTOR * longest + MEGABYTE)
        for text in _documents(lines, format, text_field, documents, longest):
            yield text, min(1.0, raw.tell() / size)


def _documents(
    lines: Lines, format: Format, text_field: str, documents: TextDocuments, longest: int
) -> Iterator[str | Unreadable]:
    if format == "txt":
        if documents == "line":
            return _each(lines)
        return _blocks(lines, longest, whole=documents == "file")
    if format == "jsonl":

        def parsed(line: str) -> str | None:
            if not line.strip():
                return None
            return text_of(json_object(line, lines.place, [text_field]), text_field, lines.place, longest)

        return _each(map(parsed, lines))
    return _each(_CsvTexts(lines, text_field, longest))


def _each(texts: Iterator[Any]) -> Iterator[str | Unreadable]:
    """The texts, without None; where one raises :class:`UserError` that comes in its place. ``texts`` is no generator,
    since those end at an error."""
    while True:
        try:
            text = next(texts)
        except StopIteration:
            return
        except UserError as error:
            yield Unreadable(str(error))
        else:
            if text is not None:
                yield text


def _blocks(lines: Lines, longest: int, *, whole: bool) -> Iterator[str | Unreadable]:
    """Lines put together: the whole file, or blocks with blank lines between. A bad line spoils its block."""
    block: list[str] = []
    size = start = 0
    problem: Unreadable | None = None
    for line in _each(lines):
        if isinstance(line, Unreadable):
            problem = problem or line
        elif whole or line.strip():
            if not block:
                start = lines.number
            block.append(line)
            size += len(line.encode())
            if size > longest and problem is None:
                problem = Unreadable(f"{lines.name}:{start}: {too_long(size, longest)}")
        elif block or problem:
            yield problem or "".join(block)
            block, size, problem = [], 0, None
        if problem:
            block.clear()
    if block or problem or whole:
        yield problem or "".join(block)


class _CsvTexts:
    """The texts of a CSV file; the first row has the columns' names."""

    def __init__(self, lines: Lines, text_field: str, longest: int) -> None:
        # Also against a quote that is never closed. The module's own limit is less than a long document.
        csv.field_size_limit(longest)
        self._lines = lines
        self._rows = csv.reader(lines, strict=True)
        self._field = text_field
        self._longest = longest
        self._header: list[str] | None = None
        self._ended = False

    def __iter__(self) -> _CsvTexts:
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
        try:
            return next(self._rows), place
        except csv.Error as error:
            last = self._lines.number
            until = f", read up to line {last}" if last > first else ""
            raise UserError(f"{place}: not CSV: {error}{until}; check the quotes") from None

    def _checked_header(self, header: list[str]) -> list[str]:
        if not header:
            raise UserError(f"{self._lines.place}: the first line is blank; write the names of the columns there")
        _check_column(self._field, header, self._lines.place)
        return header


def _read_parquet(path: Path, text_field: str, longest: int) -> Read:
    import pyarrow.parquet
    from pyarrow.lib import ArrowException

    name, done = shown(path), 0
    try:
        with ExitStack() as opened:
            raw = decompressed(opened.enter_context(path.open("rb")), path, opened)
            if is_compressed(path):  # Parquet is read from its end
                plain = opened.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(raw, plain)
                raw = cast(BinaryIO, plain)
            file = opened.enter_context(pyarrow.parquet.ParquetFile(raw))
            _check_column(text_field, file.schema_arrow.names, name)
            total = file.metadata.num_rows
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=[text_field]):
                for value in batch.column(0):
                    done += 1
                    yield _text_or_problem(value.as_py, text_field, f"{name}, row {done}", longest), done / total
    except UserError as error:
        yield Unreadable(str(error)), 1.0
    except (ArrowException, *DAMAGED) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):  # the unpacked file's place
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        after = f", after row {done}" if done else ""
        yield Unreadable(f"{name}{after}: not a Parquet file, or damaged ({reason}); copy it again"), 1.0


def _text_or_problem(value: Callable[[], Any], text_field: str, place: str, longest: int) -> str | Unreadable:
    try:
        return text_of({text_field: value()}, text_field, place, longest)
    except UnicodeDecodeError:
        return Unreadable(f"{place}: text that is not UTF-8; write the file again")
    except UserError as error:
        return Unreadable(str(error))


def _check_column(text_field: str, names: list[str], place: str) -> None:
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
        kind = "empty (null)" if text is None else f"not text but {type(text).__name__}"
        raise UserError(f"{place}: the field '{text_field}' is {kind}")
    if "\0" in text:
        raise UserError(f"{place}: a NUL character in the field '{text_field}'; mend the text")
    if 4 * len(text) > longest and (size := len(text.encode())) > longest:
        raise UserError(f"{place}: {too_long(size, longest)}")
    return text


def _missing(text_field: str, names: Iterable[Any], place: str) -> str:
    return f"{place}: no field '{text_field}'; there are {', '.join(map(str, names))}: set text_field"
