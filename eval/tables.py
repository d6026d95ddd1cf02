"""Readers of labelled tables: CSV, TSV, JSON lines, Parquet, and the hub's data sets.

Every reader gives the items of one split and their labels by name; ids become names by the data set's own
``ClassLabel`` feature or by the task's ``labels``.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eval.conll import read_utf8
from eval.labels import checked_label, checked_tag, is_iob2
from eval.settings import SPLITS, SplitName, filled
from tasks.contract import StageError, UserError
from tasks.hub import check_dataset, files_at
from tasks.user_files import json_object, shown, user_files

if TYPE_CHECKING:
    from datasets import Features


class Fields(NamedTuple):
    """Names of the two columns that are read: words and tags for NER, text and label for classification."""

    inputs: str
    labels: str


class Rows(NamedTuple):
    """Rows with the place of each, for messages, and the label names that the data itself declares, if it does."""

    rows: Iterable[tuple[str, Mapping[str, Any]]]
    names: tuple[str, ...] | None = None


def csv_rows(path: Path, fields: Fields, delimiter: str, labels: Sequence[str] | None) -> Rows:
    """Rows of a CSV or TSV file with a header, or of IndicGLUE's form without one: ``label,text``.

    A file without header needs ``labels``; else a misspelt header would silently become a class.
    """
    name = shown(path)
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(io.StringIO(read_utf8(path), newline=""), delimiter=delimiter, strict=True)

    def rows() -> Iterator[tuple[str, Mapping[str, Any]]]:
        header: list[str] | None = None
        start = 1  # first line of the row; a quoted text may span several
        try:
            for row in reader:
                place, start = f"{name}:{start}", reader.line_num + 1
                if not row:
                    continue
                if header is None:
                    header = row if {fields.inputs, fields.labels} <= set(row) else [fields.labels, fields.inputs]
                    if header is row:
                        _check_columns(fields, header, place)
                        continue
                    if len(row) != 2 or labels is None or row[0] not in labels:
                        raise UserError(
                            f"{place}: no columns {fields.inputs!r} and {fields.labels!r} among {_few(row)}; set "
                            "text_field and label_field, or give labels if the file is label,text without a header"
                        )
                if len(row) != len(header):
                    raise UserError(f"{place}: {len(row)} columns instead of {len(header)}; quote texts with commas")
                yield place, dict(zip(header, row, strict=True))
        except csv.Error as error:
            raise UserError(f"{name}:{reader.line_num}: not a valid table ({error}); check the quotes") from None

    return Rows(rows())


def json_rows(path: Path, fields: Fields) -> Rows:
    """Rows of a file with one JSON object a line."""
    name = shown(path)

    def rows() -> Iterator[tuple[str, Mapping[str, Any]]]:
        for number, line in enumerate(read_utf8(path).split("\n"), start=1):
            if line.strip():
                place = f"{name}:{number}"
                yield place, json_object(line, place, fields)

    return Rows(rows())


def parquet_rows(path: Path, fields: Fields) -> Rows:
    """Rows of a Parquet file; the hub's own files carry their label names in the schema."""
    import pyarrow
    import pyarrow.parquet
    from datasets import Features

    shown_path = shown(path)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            _check_columns(fields, schema.names, shown_path)
            rows = file.read(columns=list(fields)).to_pylist()
    except UnicodeDecodeError:
        raise UserError(f"{shown_path}: text that is not UTF-8; write the file again") from None
    except (pyarrow.ArrowException, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{shown_path}: not a Parquet file, or damaged ({reason}); copy it again") from None
    try:
        names = _class_names(Features.from_arrow_schema(schema), fields)
    except Exception as error:  # datasets checks nothing of what it finds there
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{shown_path}: its schema's 'huggingface' entry is broken ({reason}); write the file without it"
        ) from None
    places = (f"{shown_path}: row {number}" for number in range(1, len(rows) + 1))
    return Rows(zip(places, rows, strict=True), names)


def hub_splits(
    dataset: str, config: str | None, revision: str, fields: Fields, parquet_files: str | None = None
) -> dict[SplitName, Rows]:
    """The three splits of a data set of the hub, from the local cache or the network.

    ``dataset`` may be the absolute path of a folder in the hub's layout. ``parquet_files`` is a glob with ``{split}``
    in it, and ``{config}`` if it holds that name, for a data set whose Parquet copy has no configurations.

    Raises:
        StageError: the data set cannot be had.
        UserError: it has not the splits and columns that are asked for, or a local folder would take its place.
    """
    import datasets

    check_dataset(dataset)
    where = f"{dataset}{f'/{config}' if config else ''}"
    try:
        if parquet_files is None:
            loaded = datasets.load_dataset(dataset, config, revision=revision)
        else:
            files = {split: files_at(dataset, revision, filled(parquet_files, split, config)) for split in SPLITS}
            loaded = datasets.load_dataset("parquet", data_files=files)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise StageError(f"{where} cannot be loaded: {str(error).splitlines()[0]}") from error
    splits: dict[SplitName, Rows] = {}
    for split in SPLITS:
        if split not in loaded:
            raise UserError(f"{where}: no split {split!r} among {_few(list(loaded))}")
        _check_columns(fields, loaded[split].column_names, where)
        rows = loaded[split].select_columns(list(fields)).to_list()
        places = (f"{where} {split}: row {number}" for number in range(1, len(rows) + 1))
        splits[split] = Rows(zip(places, rows, strict=True), _class_names(loaded[split].features, fields))
    return splits


def local_splits(pattern: str, config: str | None, fields: Fields) -> dict[SplitName, Rows]:
    """The three splits of a local copy of a data set of the hub: Parquet files by a glob with ``{split}`` in it.

    Raises:
        UserError: with the file, if there is none or it is wrong; or files declare different label names.
    """
    splits: dict[SplitName, Rows] = {}
    declared: dict[tuple[str, ...] | None, str] = {}
    for split in SPLITS:
        read = [
            parquet_rows(path, fields) for path in user_files(filled(pattern, split, config), f"source.local {split}")
        ]
        splits[split] = Rows(itertools.chain.from_iterable(rows.rows for rows in read), read[0].names)
        declared |= {rows.names: filled(pattern, split, config) for rows in read}
    if len(declared) > 1:
        (one, first), (other, second), *_ = declared.items()
        raise UserError(f"{shown(first)} declares the labels {one}, {shown(second)} {other}; copy the data set again")
    return splits


def labelled_words(
    rows: Rows, fields: Fields, labels: Sequence[str] | None
) -> tuple[list[list[str]], list[list[str]]]:
    """Words and tags of every row, as written, for NER. Raises UserError with the row's place."""
    # BIOES names become IOB2 labels, so those two differ
    names = _names(rows, labels) if rows.names is None or all(map(is_iob2, rows.names)) else rows.names
    words: list[list[str]] = []
    tags: list[list[str]] = []
    for place, row in rows.rows:
        tokens, values = _value(row, fields.inputs, list, place), _value(row, fields.labels, list, place)
        if len(tokens) != len(values):
            raise UserError(f"{place}: {len(tokens)} words but {len(values)} tags")
        if not tokens:
            raise UserError(f"{place}: {fields.inputs!r} is an empty list; leave the row out")
        if not all(isinstance(token, str) for token in tokens):
            raise UserError(f"{place}: column {fields.inputs!r} is not a list of strings")
        words.append(tokens)
        tags.append([checked_tag(_label(value, names, place), labels, place) for value in values])
    return words, tags


def labelled_texts(rows: Rows, fields: Fields, labels: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Text and label of every row, for classification. Raises UserError with the row's place."""
    names = _names(rows, labels)
    texts: list[str] = []
    found: list[str] = []
    for place, row in rows.rows:
        texts.append(_value(row, fields.inputs, str, place))
        label = _label(_value(row, fields.labels, object, place), names, place)
        if not label.strip():
            raise UserError(f"{place}: the label in {fields.labels!r} is empty; give one, or leave the row out")
        found.append(checked_label(label, labels, place))
    return texts, found


def _check_columns(fields: Fields, names: Sequence[str], place: str) -> None:
    for field in fields:
        if field not in names:
            raise UserError(f"{place}: no column {field!r} among {_few(names)}")
        if names.count(field) > 1:
            raise UserError(f"{place}: {names.count(field)} columns are called {field!r}; rename the others")


def _names(rows: Rows, labels: Sequence[str] | None) -> Sequence[str] | None:
    """Names by id. The data's own count; the task's must not contradict them, else every score would be wrong."""
    if rows.names and labels is not None and rows.names != tuple(labels):
        raise UserError(f"labels {list(labels)} are not those of the data set, {list(rows.names)}; copy these")
    return rows.names or labels


def _label(value: Any, names: Sequence[str] | None, place: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserError(f"{place}: label {value!r} is neither a name nor a number")
    if names is None:
        raise UserError(f"{place}: label {value} is a number; give the task's labels in the order of their ids")
    if not 0 <= value < len(names):
        raise UserError(f"{place}: label {value} is not a number from 0 to {len(names) - 1}")
    return names[value]


def _value(row: Mapping[str, Any], name: str, kind: type, place: str) -> Any:
    if row.get(name) is None:
        raise UserError(f"{place}: no value {name!r} among {_few(list(row))}")
    if not isinstance(row[name], kind):
        raise UserError(f"{place}: {name!r} is a {type(row[name]).__name__}, not a {kind.__name__}")
    return row[name]


def _class_names(features: Features, fields: Fields) -> tuple[str, ...] | None:
    feature = features[fields.labels]
    names = getattr(getattr(feature, "feature", feature), "names", None)
    return tuple(names) if names else None


def _few(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:30]) for name in names[:8])
