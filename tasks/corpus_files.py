"""Reading documents from local files: ``.txt``, ``.jsonl``, ``.csv`` and ``.parquet``, the first three also ``.gz``.

Files are read as a stream, a line or a batch of rows at a time; only a ``.txt`` file that is one document is read
whole. Bad input is a :class:`~tasks.contract.UserError` that names the file and the line.
"""

from __future__ import annotations

import csv
import gzip
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from tasks.contract import UserError
from tasks.user_files import json_object, shown

Format = Literal["txt", "jsonl", "csv", "parquet"]
TextDocuments = Literal["file", "line", "blank-line"]

SUFFIXES: dict[str, Format] = {".txt": "txt", ".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet"}
COMPRESSED = ".gz"

Read = Iterator[tuple[str, float]]
"""Documents, each with the share of the file that was read when it came, 0 to 1."""


def format_of(path: Path, asked: Format | Literal["auto"], place: str) -> Format:
    """The format that was asked for or, for ``auto``, that the file's name says."""
    if asked != "auto":
        return asked
    plain = path.with_suffix("") if path.suffix == COMPRESSED else path
    if plain.suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise UserError(f"{place}: {shown(path)} does not end in {known} or one of these and .gz; set its format")
    return SUFFIXES[plain.suffix]


def read_file(path: Path, format: Format, text_field: str, documents: TextDocuments) -> Read:
    """The documents of one file. ``text_field`` matters for tables, ``documents`` for text files."""
    if format == "parquet":
        yield from _read_parquet(path, text_field)
        return
    name = shown(path)
    with path.open("rb") as raw, gzip.open(raw) if path.suffix == COMPRESSED else raw as stream:
        size = max(1, path.stat().st_size)
        try:
            for text in _read_stream(stream, name, format, text_field, documents):
                yield text, min(1.0, raw.tell() / size)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{name}: the gzip file is damaged or cut off ({error}); copy it again") from None


def _read_stream(
    stream: BinaryIO | gzip.GzipFile, name: str, format: Format, text_field: str, documents: TextDocuments
) -> Iterator[str]:
    if format == "jsonl":
        return _read_jsonl(_lines(stream, name), name, text_field)
    if format == "csv":
        return _read_csv(_lines(stream, name), name, text_field)
    if documents == "line":
        return _lines(stream, name)
    return _read_blocks(_lines(stream, name)) if documents == "blank-line" else iter(["".join(_lines(stream, name))])


def _lines(stream: BinaryIO | gzip.GzipFile, name: str) -> Iterator[str]:
    offset = 0
    for number, line in enumerate(stream, start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}:{number}: not UTF-8: byte 0x{line[error.start]:02x} at offset {offset + error.start}; "
                "convert the file to UTF-8"
            ) from None
        offset += len(line)
        yield text.removeprefix("\ufeff") if number == 1 else text


def _read_blocks(lines: Iterator[str]) -> Iterator[str]:
    block: list[str] = []
    for line in lines:
        if line.strip():
            block.append(line)
        elif block:
            yield "".join(block)
            block = []
    if block:
        yield "".join(block)


def _read_jsonl(lines: Iterator[str], name: str, text_field: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{name}:{number}"
            yield text_of(json_object(line, place, [text_field]), text_field, place)


def _read_csv(lines: Iterator[str], name: str, text_field: str) -> Iterator[str]:
    csv.field_size_limit(sys.maxsize)  # the module's own limit, 131,072 characters, is less than a long document
    rows = csv.DictReader(lines, strict=True)
    try:
        header = list(rows.fieldnames or [])
        _check_once(text_field, header, f"{name}:1")
        for row in rows:
            place = f"{name}:{rows.line_num}"
            if not header:
                raise UserError(f"{name}:1: the first line is blank; write the names of the columns there")
            if None in row:
                columns = len(header) + len(row[None])
                raise UserError(f"{place}: {columns} columns instead of {len(header)}; quote the text")
            yield text_of(row, text_field, place)
    except csv.Error as error:
        raise UserError(f"{name}:{rows.reader.line_num}: not CSV: {error}; check the quotes") from None


def _read_parquet(path: Path, text_field: str) -> Read:
    import pyarrow.parquet
    from pyarrow.lib import ArrowException

    name, done = shown(path), 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if text_field not in names:
                raise UserError(_missing(text_field, names, name))
            _check_once(text_field, names, name)
            for batch in file.iter_batches(batch_size=1_000, columns=[text_field]):
                for row in batch.to_pylist():
                    done += 1
                    yield text_of(row, text_field, f"{name}, row {done}"), done / file.metadata.num_rows
    except UnicodeDecodeError:
        raise UserError(f"{name}, after row {done}: text that is not UTF-8; write the file again") from None
    except (ArrowException, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{name}: not a Parquet file, or damaged ({reason}); copy it again") from None


def _check_once(text_field: str, names: list[str], place: str) -> None:
    if names.count(text_field) > 1:
        raise UserError(f"{place}: {names.count(text_field)} columns are called '{text_field}'; rename the others")


def text_of(row: dict[str, object], text_field: str, place: str) -> str:
    """The text of a row, or a :class:`UserError` that begins with ``place``."""
    text = row.get(text_field)
    if isinstance(text, str):
        return text
    if text_field not in row:
        raise UserError(_missing(text_field, [str(name) for name in row], place))
    kind = "empty (null)" if text is None else f"not text but {type(text).__name__}"
    raise UserError(f"{place}: the field '{text_field}' is {kind}")


def _missing(text_field: str, names: list[str], place: str) -> str:
    return f"{place}: no field '{text_field}'; there are {', '.join(names)}: set text_field"
