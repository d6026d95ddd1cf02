"""The three splits of a task, whatever they come from, with their label set and a digest of their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.conll import read_conll
from eval.labels import derived_labels, is_iob2, to_iob2
from eval.settings import (
    SPLITS,
    EvaluationSettings,
    FilesSource,
    HubSource,
    SampleSource,
    SplitName,
    TaskSettings,
    filled,
)
from eval.tables import (
    Fields,
    Rows,
    csv_rows,
    hub_splits,
    json_rows,
    labelled_texts,
    labelled_words,
    local_splits,
    parquet_rows,
)
from tasks.contract import UserError
from tasks.hub import check_dataset
from tasks.user_files import COMPRESSIONS, shown, user_files

_FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet"}

CHECKED_BYTES = 20_000_000
"""Labelled files of more than this are read only by the seed runs: reading takes about 0.1 s a megabyte."""


@dataclass(frozen=True)
class Split:
    """Items of one split: lists of words with lists of tags (NER), or texts with one label each."""

    inputs: list[Any]
    labels: list[Any]

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class TaskData:
    """A task's label names by id and its splits by name."""

    labels: tuple[str, ...]
    splits: dict[str, Split]
    tags_converted: int = 0
    """Tags that IOB2 writes otherwise than the files do, see :func:`eval.labels.to_iob2`."""

    def overlap(self) -> dict[str, int]:
        """Items of validation and test that are in training too: equal words, or texts equal but for white space."""
        training = {_essence(item) for item in self.splits["train"].inputs}
        return {
            name: sum(_essence(item) in training for item in self.splits[name].inputs)
            for name in ("validation", "test")
        }

    def facts(self) -> dict[str, Any]:
        """What the scores were measured on: sizes, labels, SHA-256 of the content, overlap, converted tags.

        The digest is that of the items and labels as they are scored, so that it is the same for one data set in any
        file format or tagging scheme.
        """
        digest = hashlib.sha256()
        for name in SPLITS:
            split = self.splits[name]
            digest.update(json.dumps([name, split.inputs, split.labels], ensure_ascii=False).encode())
        items = {name: len(self.splits[name]) for name in SPLITS}
        return {
            "items": items,
            "labels": list(self.labels),
            "sha256": digest.hexdigest(),
            "overlap": self.overlap(),
            "tags_converted": self.tags_converted,
        }


def warnings_of(task: TaskSettings, facts: dict[str, Any]) -> list[str]:
    """What a reader of the scores must know about the data; ``facts`` from :meth:`TaskData.facts`."""
    found = []
    for name, count in facts["overlap"].items():
        items = facts["items"][name]
        if count > task.max_overlap * items:
            found.append(
                f"{count:,} of {items:,} {name} items ({count / items:.1%}) are in the training split too, more than "
                f"max_overlap {task.max_overlap:.1%}: the scores reward what was learnt by heart"
            )
    return found


def check(settings: EvaluationSettings) -> None:
    """What can be known to be wrong before anything runs; cheap enough for ``plan``.

    The user's files are read as well if they are small together and none is Parquet, whose library is slow to load:
    else a wrong tag would be found only after hours of pretraining.

    Raises:
        UserError: a file is missing or wrong, a format does not fit the kind of task, a published table is not known.
    """
    to_read: list[TaskSettings] = []
    size = 0
    for name, task in settings.tasks.items():
        place = f"evaluation.tasks.{name}"
        if task.published is not None:
            from eval.published import published_tables

            known = published_tables()
            if task.published not in known:
                raise UserError(f"{place}.published: no table {task.published!r}; known are {', '.join(known)}")
        if isinstance(task.source, FilesSource):
            paths = [
                path for split in SPLITS for path in user_files(getattr(task.source, split), f"{place}.source.{split}")
            ]
            if "parquet" not in {_format(task, path) for path in paths}:
                to_read.append(task)
                size += sum(path.stat().st_size for path in paths)
        elif isinstance(task.source, HubSource):
            check_dataset(task.source.dataset)
            _fields(task)
            if task.source.local is not None:
                for split in SPLITS:
                    user_files(filled(task.source.local, split, task.source.config), f"{place}.source.local")
    if size <= CHECKED_BYTES:
        for task in to_read:
            load_task(task)


def load_task(task: TaskSettings) -> TaskData:
    """The task's data.

    Without ``labels`` in the settings the label set is that of the training split, and a label that occurs only
    elsewhere is an error.

    Raises:
        UserError: with file and line or row, whatever is wrong with the data; or its digest is not the stated one.
        StageError: a data set of the hub cannot be loaded.
    """
    if isinstance(task.source, SampleSource):
        return _sample(task, task.source)
    hub = _hub_rows(task, task.source) if isinstance(task.source, HubSource) else None
    labels = task.labels
    if hub is not None and labels is None and (names := hub["train"].names):
        # BIOES names are no labels: tags become IOB2
        labels = names if task.kind == "classification" or all(map(is_iob2, names)) else None
    splits: dict[str, Split] = {}
    converted = 0
    for name in SPLITS:
        if hub is not None:
            read = labelled_words if task.kind == "ner" else labelled_texts
            splits[name] = Split(*read(hub[name], _fields(task), labels))
        else:
            assert isinstance(task.source, FilesSource)
            splits[name] = _read_files(task, task.source, name, labels)
        if task.kind == "ner":
            as_iob2 = [to_iob2(tags) for tags in splits[name].labels]
            converted += _differing(splits[name].labels, as_iob2)
            splits[name] = Split(splits[name].inputs, as_iob2)
        if not splits[name].inputs:
            raise UserError(f"{_where(task, name)}: the {name} split is empty")
        if labels is None:
            labels = derived_labels(task.kind, _flat(task.kind, splits[name].labels))
            if len(labels) < 2:
                raise UserError(f"{_where(task, name)}: only one label, {labels[0]!r}; nothing can be learnt from it")
    assert labels is not None
    data = TaskData(tuple(labels), splits, converted)
    if task.sha256 is not None and task.sha256 != (digest := data.facts()["sha256"]):
        raise UserError(
            f"{_where(task, 'train')}: the content's digest is {digest}, not the task's sha256 {task.sha256}; "
            "take the data that it was made of, or state the new one"
        )
    return data


def _hub_rows(task: TaskSettings, source: HubSource) -> dict[SplitName, Rows]:
    if source.local is not None:
        return local_splits(source.local, source.config, _fields(task))
    return hub_splits(source.dataset, source.config, source.revision, _fields(task), source.parquet_files)


def _sample(task: TaskSettings, source: SampleSource) -> TaskData:
    from tasks.sample.labelled import NER_LABELS, TOPICS, ner_split, topic_split

    splits: dict[str, Split] = {}
    for name in SPLITS:
        count = getattr(source, name)
        if task.kind == "ner":
            sentences = ner_split(source.seed, name, count)
            splits[name] = Split([words for words, _ in sentences], [tags for _, tags in sentences])
        else:
            passages = topic_split(source.seed, name, count)
            splits[name] = Split([text for text, _ in passages], [TOPICS[label] for _, label in passages])
    return TaskData(tuple(NER_LABELS if task.kind == "ner" else TOPICS), splits)


def _read_files(task: TaskSettings, source: FilesSource, split: str, labels: Sequence[str] | None) -> Split:
    inputs: list[Any] = []
    found: list[Any] = []
    for path in user_files(getattr(source, split), f"source.{split}"):
        file_format = _format(task, path)
        if file_format == "conll":
            assert not isinstance(source.token_column, str)
            assert not isinstance(source.tag_column, str)
            items, item_labels = read_conll(path, source.token_column, source.tag_column, labels)
            inputs += items
            found += item_labels
            continue
        fields = _fields(task)
        if file_format == "parquet":
            rows = parquet_rows(path, fields)
        elif file_format == "jsonl":
            rows = json_rows(path, fields)
        else:
            rows = csv_rows(path, fields, "\t" if file_format == "tsv" else ",", labels)
        read = labelled_words if task.kind == "ner" else labelled_texts
        more_inputs, more_labels = read(rows, fields, labels)
        inputs += more_inputs
        found += more_labels
    return Split(inputs, found)


def _format(task: TaskSettings, path: Path) -> str:
    """The file's format. Raises UserError if it cannot hold this kind of task, or its columns are named wrongly."""
    assert isinstance(task.source, FilesSource)
    name, known = shown(path), ", ".join(_FORMATS)
    if path.suffix.lower() in COMPRESSIONS:
        raise UserError(f"{name}: labelled files are not read compressed; unpack it to one that ends in {known}")
    file_format = task.source.format
    if file_format == "auto":
        file_format = _FORMATS.get(path.suffix.lower(), "conll")  # type: ignore[assignment]
    if task.kind == "ner" and file_format in ("csv", "tsv"):
        raise UserError(f"{name}: format {file_format} holds no lists of words; use conll, jsonl or parquet for NER")
    if task.kind == "classification" and file_format == "conll":
        if task.source.format == "auto":
            raise UserError(f"{name}: does not end in {known}; rename it, or set the source's format")
        raise UserError(f"{name}: format conll is for NER; use csv, tsv, jsonl or parquet for classification")
    if file_format == "conll":
        for column in ("token_column", "tag_column"):
            if isinstance(getattr(task.source, column), str):
                raise UserError(f"{name}: {column} {getattr(task.source, column)!r} must be a number in a CoNLL file")
    else:
        _fields(task)
    return file_format


def _fields(task: TaskSettings) -> Fields:
    source = task.source
    assert isinstance(source, FilesSource | HubSource)
    if task.kind == "classification":
        return Fields(source.text_field, source.label_field)
    tokens = "tokens" if source.token_column is None else source.token_column
    tags = "ner_tags" if source.tag_column is None else source.tag_column
    if not isinstance(tokens, str) or not isinstance(tags, str):
        raise UserError(f"token_column {tokens!r} and tag_column {tags!r} must be names except in CoNLL files")
    return Fields(tokens, tags)


def _where(task: TaskSettings, split: str) -> str:
    return task.source.dataset if isinstance(task.source, HubSource) else str(getattr(task.source, split))


def _essence(item: Any) -> str:
    return "\n".join(item) if isinstance(item, list) else " ".join(item.split())


def _differing(written: list[list[str]], converted: list[list[str]]) -> int:
    return sum(one != other for pair in zip(written, converted, strict=True) for one, other in zip(*pair, strict=True))


def _flat(kind: str, labels: list[Any]) -> list[str]:
    return [tag for tags in labels for tag in tags] if kind == "ner" else labels
