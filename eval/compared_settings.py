"""Settings of a model of others that ours is compared with, and the files of it that count.

Those are: ``config.json``; the weights, as safetensors or else as PyTorch's own files; and what the tokenizer is made
of. Nothing else in a folder is read, so code in it is never run, and nothing else is part of the identity.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from eval.fields import ModelRevision, RepositoryName, absolute
from tasks.contract import Settings, UserError, UserPath
from tasks.user_files import file_problem, shown

VOCABULARIES = ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "spm.model")
"""Files that a tokenizer can be built from anew, with other options than it was saved with."""

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt"),
    *VOCABULARIES,
)

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""The first that is there is read; an index names further files."""


class ComparedModel(Settings):
    """A model of the Hugging Face hub at a commit, or one in a local folder; and how its tokenizer is built."""

    hub: RepositoryName | None = Field(None, description="owner/name of a model of the Hugging Face hub")
    revision: ModelRevision | None = Field(
        None,
        description="its commit, 40 hexadecimal digits; main: the newest one when it is fetched, as recorded then",
    )
    local: Annotated[str | None, absolute] = Field(
        None, description="folder with a copy of the hub's model, read in its place; nothing is fetched"
    )
    path: Annotated[str | None, absolute] = Field(None, description="in place of hub: folder with a model")
    keep_accents: bool | None = Field(
        None, description="tokenizers of ALBERT and XLNet: true keeps accents and vowel signs; null: as saved"
    )
    strip_accents: bool | None = Field(
        None, description="tokenizers of BERT: false keeps accents and vowel signs; null: as saved"
    )
    do_lower_case: bool | None = Field(None, description="whether the tokenizer lowers letters; null: as saved")
    add_prefix_space: bool | None = Field(
        None, description="byte-level tokenizers: whether a first word gets a space before it; null: as saved"
    )
    title: str | None = Field(None, description="what the report adds to the name; null: where the model is from")

    @model_validator(mode="after")
    def _one_place(self) -> ComparedModel:
        if (self.hub is None) == (self.path is None):
            raise ValueError("a model is either hub: owner/name, or path: FOLDER; give one of the two")
        if self.hub is None and (self.revision or self.local):
            raise ValueError("revision and local are for a model of the hub; leave them out beside path")
        if self.keep_accents is not None and self.strip_accents is not None:
            raise ValueError("keep_accents and strip_accents are of different tokenizers; leave one out")
        return self

    def pin_problem(self) -> str | None:
        """What is missing for a model of the hub to be the same one tomorrow; None if nothing is."""
        if self.hub is None or self.revision or self.local:
            return None
        page = f"https://huggingface.co/{self.hub}/commits/main"
        return f"no revision is pinned; give the full commit hash from {page}, or local: FOLDER with a copy"

    @property
    def folder(self) -> Path | None:
        """The user's folder with the model; None if it comes from the hub."""
        folder = self.local or self.path
        return None if folder is None else Path(folder)

    @property
    def fetches(self) -> str | None:
        """What is fetched from the hub unless it was before; None for a local model."""
        return f"{self.hub} at {(self.revision or '')[:7]}" if self.folder is None else None

    @property
    def origin(self) -> str:
        """Where the model is from, in a few words and without a path."""
        if self.hub is None:
            return "own folder"
        return f"{self.hub} at {self.revision[:7]}" if self.revision else f"{self.hub}, a copy"

    @property
    def tokenizer_options(self) -> dict[str, bool]:
        """The options that are given, under transformers' names."""
        names = ("keep_accents", "strip_accents", "do_lower_case", "add_prefix_space")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def identity_inputs(self) -> dict[str, Any]:
        """A local model by the content of its files, so that editing it counts, and moving it does not."""
        if self.folder is None:
            return {}
        files = {name: ModelFile(path=str(path)) for name, path in self.files_in(self.folder).items()}
        return {"local" if self.hub else "path": files}

    def files_in(self, folder: Path) -> dict[str, Path]:
        """The files that are read, by name; with options, not the saved tokenizer but the vocabulary behind it.

        Raises:
            UserError: the folder lacks a configuration, weights or a tokenizer, or a file cannot be read.
        """
        names = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
        if not folder.is_dir():
            raise UserError(f"{shown(folder)}: {'is no folder' if folder.exists() else 'no such folder'}")
        if not {"tokenizer.json", *VOCABULARIES} & set(names):
            raise UserError(f"{shown(folder)}: has no tokenizer: neither tokenizer.json nor {', '.join(VOCABULARIES)}")
        if self.tokenizer_options and set(VOCABULARIES) & set(names):
            names = [name for name in names if name != "tokenizer.json"]
        weights = next((name for name in WEIGHTS if (folder / name).is_file()), None)
        if weights is None:
            raise UserError(f"{shown(folder)}: has no weights: neither {WEIGHTS[0]} nor {WEIGHTS[2]}")
        names += ["config.json", weights]
        if weights.endswith(".index.json"):
            names += _parts(folder / weights)
        for name in names:
            if problem := file_problem(folder / name):
                raise UserError(f"{shown(folder / name)}: {problem}")
        return {name: folder / name for name in sorted(names)}


class ModelFile(Settings):
    """One file of a local model, as the identity has it."""

    path: UserPath


def _parts(index: Path) -> list[str]:
    """Names of the files that an index of weights lists; they lie beside it."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{shown(index)}: is no index of weights; copy the model again") from None
    if odd := [name for name in names if not isinstance(name, str) or "/" in name or "\\" in name]:
        raise UserError(f"{shown(index)}: {odd[0]!r} is no file beside it; copy the model again")
    return sorted(names)
