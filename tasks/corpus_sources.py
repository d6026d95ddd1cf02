"""Where documents come from: the built-in sample, local files, and data sets of the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.contract import EXECUTION, Settings, StageError, UserError, UserPath
from tasks.corpus_fields import text_of
from tasks.corpus_files import Format, Read, TextDocuments, Unreadable, format_of, read_file
from tasks.foreign_text import first_line
from tasks.hub import check_dataset, files_at
from tasks.user_files import user_files

Weight = Annotated[float, Field(gt=0, lt=1)]


class SampleSource(Settings):
    """Documents made by the built-in generator."""

    kind: Literal["sample"]
    documents: int = Field(default=6_000, ge=2, description="How many documents to make.")
    seed: int = Field(default=0, description="Other seeds make other documents with the same words.")
    name: str = Field(default="sample", min_length=1, description="What the column `source` says.")
    weight: Weight | None = Field(default=None, description="Probability to draw from this source.")


class FilesSource(Settings):
    """Documents in the user's own files."""

    kind: Literal["files"]
    paths: list[UserPath] = Field(min_length=1, description="Files and globs (`**` for any folders).")
    format: Format | Literal["auto"] = Field(default="auto", description="`auto` goes by the file's ending.")
    text_field: str = Field(default="text", min_length=1, description="Field or column with the text.")
    documents: TextDocuments = Field(default="file", description="What one document is in a .txt file.")
    name: str = Field(default="files", min_length=1, description="What the column `source` says.")
    weight: Weight | None = Field(default=None, description="Probability to draw from this source.")


class HubSource(Settings):
    """A split of a data set on the hub."""

    kind: Literal["hub"]
    dataset: str = Field(min_length=1, description="Its id, such as `wikimedia/wikipedia`.")
    config: str | None = Field(default=None, description="Its configuration, such as `20231101.bn`.")
    parquet_files: str | None = Field(
        default=None,
        description="A glob of Parquet files in it, for one that has no configurations or still a loading script.",
    )
    revision: str = Field(description="The full commit hash: a branch or tag may be moved.")
    split: str = Field(default="train", min_length=1, description="Which split of it.")
    text_field: str = Field(default="text", min_length=1, description="Column with the text.")
    streaming: Annotated[bool, EXECUTION] = Field(
        default=True, description="Keep nothing but the documents; false downloads all of it first and keeps it."
    )
    name: str = Field(min_length=1, description="What the column `source` says.")
    weight: Weight | None = Field(default=None, description="Probability to draw from this source.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.config and self.parquet_files:
            raise ValueError("config and parquet_files exclude each other")
        return self

    @field_validator("revision")
    @classmethod
    def _pinned(cls, revision: str) -> str:
        if not re.fullmatch("[0-9a-f]{40}", revision):
            raise ValueError("pin it: a revision is the full commit hash, 40 digits of 0-9 and a-f")
        return revision


Source = Annotated[SampleSource | FilesSource | HubSource, Field(discriminator="kind")]


def check_source(source: SampleSource | FilesSource | HubSource, place: str) -> None:
    """Raise :class:`UserError`, beginning with ``place``, where a file is missing or of unknown format."""
    if isinstance(source, FilesSource):
        for path in _files(source, place):
            format_of(path, source.format, f"{place}.format")
    elif isinstance(source, HubSource):
        check_dataset(source.dataset)


def read_source(source: SampleSource | FilesSource | HubSource, place: str, longest: int) -> Read:
    """All documents of a source, as they are, each with the share of the source that was read when it came.

    What cannot be read comes in the place of its document, but for what concerns the source as a whole.

    Args:
        source: which.
        place: where the recipe says so, for messages.
        longest: most bytes of a document in UTF-8.

    Raises:
        UserError: a file is missing, or the data set is.
        StageError: the hub does not answer.
    """
    if isinstance(source, SampleSource):
        from tasks.sample.text import documents

        for number, text in enumerate(documents(source.seed, source.documents), start=1):
            yield text, number / source.documents
    elif isinstance(source, FilesSource):
        files = _files(source, place)
        sizes = [max(1, path.stat().st_size) for path in files]
        before, total = 0, sum(sizes)
        for path, size in zip(files, sizes, strict=True):
            format = format_of(path, source.format, f"{place}.format")
            for read, share in read_file(path, format, source.text_field, source.documents, longest):
                yield read, (before + share * size) / total
            before += size
    else:
        yield from _read_hub(source, place, longest)


def _files(source: FilesSource, place: str) -> list[Path]:
    """The source's files in the order of its paths, none twice."""
    return list(dict.fromkeys(file for path in source.paths for file in user_files(path, f"{place}.paths")))


def _read_hub(source: HubSource, place: str, longest: int) -> Read:
    part = source.config or source.parquet_files
    where = f"{place}: {source.dataset}" + (f" ({part})" if part else "")
    try:
        rows = _load(source)
        total = 0 if source.streaming else len(rows)  # a stream does not say how long it is
        for number, row in enumerate(rows, start=1):
            text: str | Unreadable
            try:
                text = text_of(row, source.text_field, f"{where}, row {number}", longest)
            except UserError as error:
                text = Unreadable(str(error))
            yield text, number / total if total else 0.0
    except UserError:
        raise
    except (FileNotFoundError, ValueError) as error:  # the data set, configuration, split or revision is not there
        raise UserError(f"{where}: {first_line(error)}") from error
    except RuntimeError as error:
        if "script" not in str(error):
            raise
        raise UserError(f"{where}: {first_line(error)}; name a revision that has Parquet files") from error
    except OSError as error:
        raise StageError(f"{where}: the hub does not answer: {first_line(error)}") from error


def _load(source: HubSource) -> Any:
    from datasets import load_dataset

    check_dataset(source.dataset)
    chosen = {"split": source.split, "streaming": source.streaming}
    if source.parquet_files is None:
        return load_dataset(source.dataset, source.config, revision=source.revision, **chosen)
    files = {source.split: files_at(source.dataset, source.revision, source.parquet_files)}
    return load_dataset("parquet", data_files=files, **chosen)
