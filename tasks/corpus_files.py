"""Reading documents from local files: ``.txt``, ``.jsonl``, ``.csv`` and ``.parquet``, each also compressed.

Files are read as a stream, and what cannot be read comes as an item of its own in its place, so that whoever reads
decides what becomes of it. Nothing longer than the limit for a document is ever held.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from tasks.contract import UserError
from tasks.corpus_csv import CsvTexts
from tasks.corpus_fields import check_column, text_of
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
            line = line.removeprefix("\ufeff")  # where files were put one behind the other
            if not line.strip():
                return None
            return text_of(json_object(line, lines.place, [text_field]), text_field, lines.place, longest)

        return _each(map(parsed, lines))
    return _each(CsvTexts(lines, text_field, longest))


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
            block.append(_with_newline(line))
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


def _with_newline(line: str) -> str:
    """A line with the end that lines have in Python, whatever it was in the file."""
    return line.rstrip("\r\n") + "\n" if line.endswith(("\r\n", "\r")) else line


def _read_parquet(path: Path, text_field: str, longest: int) -> Read:
    import pyarrow.parquet
    from pyarrow.lib import ArrowException

    name, done = shown(path), 0
    try:
        with ExitStack() as opened:
            raw: BinaryIO = decompressed(opened.enter_context(path.open("rb")), path, opened)
            if is_compressed(path):  # Parquet is read from its end
                plain = opened.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(raw, plain)
                raw = cast(BinaryIO, plain)
            file = opened.enter_context(pyarrow.parquet.ParquetFile(raw))
            check_column(text_field, file.schema_arrow.names, name)
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
