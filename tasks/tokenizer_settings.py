"""The settings of the stage ``tokenizer``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from tasks.contract import Settings, UserError, UserPath, absolute_path
from tasks.tokenizer_definition import (
    MAX_ENTRIES,
    TokenizerDefinition,
    check_definition_name,
    is_definition_path,
    load_definition,
)
from tasks.tokenizer_scripts import scripts_contradict


class ReferenceTokenizer(Settings):
    """Another tokenizer, measured on the same held-out text, to compare with."""

    name: str = Field(min_length=1, max_length=40, description="what the report calls it")
    file: UserPath | None = Field(None, description="path of its tokenizer.json")
    hub: str | None = Field(None, description="or its name on the Hugging Face hub, where tokenizer.json is read")
    revision: str | None = Field(None, description="with `hub`: the full commit hash")

    @field_validator("name")
    @classmethod
    def _one_line(cls, name: str) -> str:
        if name != name.strip() or not name.isprintable():
            raise ValueError("a name is one line that can be printed, without space around it")
        return name

    @field_validator("revision")
    @classmethod
    def _pinned(cls, revision: str | None) -> str | None:
        if revision is not None and not re.fullmatch("[0-9a-f]{40}", revision):
            raise ValueError("pin it: a revision is the full commit hash, 40 digits of 0-9 and a-f")
        return revision

    @model_validator(mode="after")
    def _one_place(self) -> ReferenceTokenizer:
        if (self.file is None) == (self.hub is None):
            raise ValueError("give either `file` or `hub`")
        if (self.hub is None) != (self.revision is None):
            raise ValueError("`hub` and `revision` go together")
        return self


class TokenizerSettings(Settings):
    """Which tokenizer to train, and on how much of the corpus."""

    definition: str = Field(
        "bengali-unigram-32k", description="name of a built-in definition (tokenizers/), or path of a .yaml file"
    )
    switches: dict[str, bool] = Field({}, description="turns switches of the definition on or off, by name")
    vocabulary_size: int | None = Field(
        None, ge=16, le=MAX_ENTRIES, description="entries, special tokens included; null takes the definition's"
    )
    sample_characters: int | None = Field(
        200_000_000,
        ge=10_000,
        description="train on about this many characters, drawn line by line from the whole corpus; null takes all",
    )
    seed: int = Field(0, ge=0, description="decides which lines are drawn")
    max_unknown_rate: float = Field(
        0.01, ge=0, le=1, description="the stage fails if more of the held-out text's tokens are unknown"
    )
    references: tuple[ReferenceTokenizer, ...] = Field(
        (), description="other tokenizers to measure on the same held-out text"
    )

    @field_validator("definition")
    @classmethod
    def _known(cls, definition: str, info: ValidationInfo) -> str:
        """A relative path starts at the recipe's folder, which the recipe's loader passes as context."""
        check_definition_name(definition)
        return absolute_path(definition, info) if is_definition_path(definition) else definition

    @field_validator("references")
    @classmethod
    def _distinct(cls, references: tuple[ReferenceTokenizer, ...]) -> tuple[ReferenceTokenizer, ...]:
        names = [reference.name for reference in references]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two references are called {name!r}; names must differ")
        return references

    def loaded(self) -> TokenizerDefinition:
        """The definition with the recipe's switches set.

        Raises:
            UserError: the file is wrong or has no such switch; one line that names the place.
        """
        definition = load_definition(self.definition)
        try:
            return definition.switched(self.switches)
        except UserError as error:
            raise UserError(f"tokenizer.switches: {self.definition}: {error}") from None

    def script_problem(self, kept: Sequence[str]) -> str | None:
        """Why the definition is of no use for a corpus of the Unicode scripts ``kept``; None if it is.

        Raises:
            UserError: the definition is wrong.
        """
        meant = self.loaded().scripts
        if meant is None or not scripts_contradict(kept, meant):
            return None
        return (
            f"corpus.script.names {', '.join(kept)} leaves no text in the scripts that tokenizer.definition "
            f"{self.definition} is meant for, {', '.join(meant)}; change one of them"
        )

    def identity_inputs(self) -> dict[str, Any]:
        """The definition by its content, so that editing it reruns the stage, and moving a user's file does not."""
        name = "file" if is_definition_path(self.definition) else self.definition
        return {"definition": name, "definition_content": self.loaded().content()}
