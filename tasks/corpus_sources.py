"""Where documents come from: the built-in sample, local files, and data sets of the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.contract import Settings, StageError, UserError, UserPath
from tasks.corpus_files import COMPRESSED, Format, Read, TextDocuments, format_of, read_file, text_of
from tasks.hub import check_dataset, files_at
from tasks.user_files import shown, user_files

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
    """A split of a data set on the hub, which is streamed: nothing of it is kept but the documents."""

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
            if format_of(path, source.format, f"{place}.format") == "parquet" and path.suffix == COMPRESSED:
                raise UserError(f"{place}.paths: {shown(path)}: Parquet files are compressed inside; unpack it")
    elif isinstance(source, HubSource):
        check_dataset(source.dataset)


def read_source(source: SampleSource | FilesSource | HubSource, place: str) -> Read:
    """All documents of a source, as they are, each with the share of the source that was read when it came."""
    if isinstance(source, SampleSource):
        from tasks.sample.text import documents

        for number, text in enumerate(documents(source.seed, source.documents), start=1):
            yield text, number / source.documents
    elif isinstance(source, FilesSource):
        files = _files(source, place)
        sizes = [max(1, path.stat().st_size) for path in files]
        for index, path in enumerate(files):
            format = format_of(path, source.format, f"{place}.format")
            for text, share in read_file(path, format, source.text_field, source.documents):
                yield text, (sum(sizes[:index]) + share * sizes[index]) / sum(sizes)
    else:
        yield from _read_hub(source, place)


def _files(source: FilesSource, place: str) -> list[Path]:
    """The source's files in the order of its paths, none twice."""
    return list(dict.fromkeys(file for path in source.paths for file in user_files(path, f"{place}.paths")))


def _read_hub(source: HubSource, place: str) -> Read:
    part = source.config or source.parquet_files
    where = f"{place}: {source.dataset}" + (f" ({part})" if part else "")
    rows = 0
    try:
        for row in _stream(source):
            rows += 1
            yield text_of(row, source.text_field, f"{where}, row {rows}"), 0.0  # a stream does not say how long it is
    except UserError:
        raise
    except (FileNotFoundError, ValueError) as error:  # the data set, configuration, split or revision is not there
        raise UserError(f"{where}: {_first_line(error)}") from error
    except RuntimeError as error:
        if "script" not in str(error):
            raise
        raise UserError(f"{where}: {_first_line(error)}; name a revision that has Parquet files") from error
    except OSError as error:
        raise StageError(f"{where}: the hub does not answer: {_first_line(error)}") from error


def _stream(source: HubSource) -> Any:
    from datasets import load_dataset

    check_dataset(source.dataset)
    if source.parquet_files is None:
        return load_dataset(
            source.dataset, source.config, revision=source.revision, split=source.split, streaming=True
        )
    files = {source.split: files_at(source.dataset, source.revision, source.parquet_files)}
    return load_dataset("parquet", data_files=files, split=source.split, streaming=True)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
