"""Reading documents from local files: ``.txt``, ``.jsonl``, ``.csv`` and ``.parquet``, the first three also ``.gz``.

Files are read as a stream, a line or a batch of rows at a time; only a ``.txt`` file that is one document is read
whole. Bad input is a :class:`~tasks.contract.UserError` that names the file and the line.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from difflib import get_close_matches
from glob import glob, has_magic
from pathlib import Path
from typing import BinaryIO, Literal

from tasks.contract import UserError

Format = Literal["txt", "jsonl", "csv", "parquet"]
TextDocuments = Literal["file", "line", "blank-line"]

SUFFIXES: dict[str, Format] = {".txt": "txt", ".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet"}
COMPRESSED = ".gz"

Read = Iterator[tuple[str, float]]
"""Documents, each with the share of the file that was read when it came, 0 to 1."""


def find_files(paths: list[str], place: str) -> list[Path]:
    """The files that paths and globs name, in that order, those of one glob by name, none twice.

    Raises :class:`UserError`, which begins with ``place``, for a missing file and for a glob without a match.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if has_magic(path):
            matches = sorted(match for match in glob(path, recursive=True) if Path(match).is_file())
            if not matches:
                raise UserError(f"{place}: no file matches {path}; {_what_is_there(Path(path))}")
            found.update(dict.fromkeys(map(Path, matches)))
        elif Path(path).is_dir():
            raise UserError(f"{place}: {path} is a folder; name its files, such as {Path(path) / '*.jsonl'}")
        elif not Path(path).is_file():
            raise UserError(f"{place}: no file {path}; {_what_is_there(Path(path))}")
        else:
            found[Path(path)] = None
    return list(found)


def _what_is_there(path: Path) -> str:
    """What the user may have meant: the nearest name in the last part of the path that exists."""
    wanted, folder = path.name, path.parent
    while not folder.is_dir():
        wanted, folder = folder.name, folder.parent
    nearest = get_close_matches(wanted, [entry.name for entry in folder.iterdir()], n=1, cutoff=0.4)
    return f"did you mean {folder / nearest[0]}?" if nearest else f"nothing in {folder} has a name like that"


def format_of(path: Path, asked: Format | Literal["auto"], place: str) -> Format:
    """The format that was asked for or, for ``auto``, that the file's name says."""
    if asked != "auto":
        return asked
    plain = path.with_suffix("") if path.suffix == COMPRESSED else path
    if plain.suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise UserError(f"{place}: {path} does not end in {known} or one of these and .gz; set its format")
    return SUFFIXES[plain.suffix]


def read_file(path: Path, format: Format, text_field: str, documents: TextDocuments) -> Read:
    """The documents of one file. ``text_field`` matters for tables, ``documents`` for text files."""
    if format == "parquet":
        yield from _read_parquet(path, text_field)
        return
    with path.open("rb") as raw, gzip.open(raw) if path.suffix == COMPRESSED else raw as stream:
        size = max(1, path.stat().st_size)
        try:
            for text in _read_stream(stream, path, format, text_field, documents):
                yield text, min(1.0, raw.tell() / size)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{path}: the gzip file is damaged or cut off ({error}); copy it again") from None


def _read_stream(
    stream: BinaryIO | gzip.GzipFile, path: Path, format: Format, text_field: str, documents: TextDocuments
) -> Iterator[str]:
    if format == "jsonl":
        return _read_jsonl(_lines(stream, path), path, text_field)
    if format == "csv":
        return _read_csv(_lines(stream, path), path, text_field)
    if documents == "line":
        return _lines(stream, path)
    return _read_blocks(_lines(stream, path)) if documents == "blank-line" else iter(["".join(_lines(stream, path))])


def _lines(stream: BinaryIO | gzip.GzipFile, path: Path) -> Iterator[str]:
    offset = 0
    for number, line in enumerate(stream, start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}:{number}: not UTF-8: byte 0x{line[error.start]:02x} at offset {offset + error.start}; "
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


def _read_jsonl(lines: Iterator[str], path: Path, text_field: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not JSON: {error.msg} at column {error.colno}") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: not a JSON object but {type(row).__name__}")
        yield text_of(row, text_field, f"{path}:{number}")


def _read_csv(lines: Iterator[str], path: Path, text_field: str) -> Iterator[str]:
    csv.field_size_limit(sys.maxsize)  # the module's own limit, 131,072 characters, is less than a long document
    rows = csv.DictReader(lines, strict=True)
    try:
        for row in rows:
            yield text_of(row, text_field, f"{path}:{rows.line_num}")
    except csv.Error as error:
        raise UserError(f"{path}:{rows.line_num}: not CSV: {error}") from None


def _read_parquet(path: Path, text_field: str) -> Read:
    import pyarrow.parquet
    from pyarrow.lib import ArrowInvalid

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if text_field not in file.schema_arrow.names:
                raise UserError(_missing(text_field, file.schema_arrow.names, str(path)))
            done = 0
            for batch in file.iter_batches(batch_size=1_000, columns=[text_field]):
                for row in batch.to_pylist():
                    done += 1
                    yield text_of(row, text_field, f"{path}, row {done}"), done / file.metadata.num_rows
    except ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: not a Parquet file: {reason}") from None


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
