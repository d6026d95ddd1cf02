"""Tokenizer definitions: what a tokenizer is before it has seen any text.

A definition is a YAML file: algorithm, normaliser, pre-tokenizer, special tokens, templates and what it promises to
keep. The built-in ones lie in the folder ``tokenizers/`` of the repository, in a wheel beside this module; a user's
own file is as good. ``tokenizers/template.yaml`` explains every key.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from tasks.contract import Settings, UserError
from tasks.strict_yaml import read_yaml
from tasks.tokenizer_scripts import script_name_problem
from tasks.tokenizer_trials import check_pattern, is_ordinary
from tasks.user_files import file_problem, shown

MAX_ENTRIES = 1_000_000
"""Most entries of a vocabulary; the largest in use have a quarter of that."""


class _NormalizerStep(Settings):
    """What all normaliser steps share."""

    switch: str | None = Field(None, description="which of the definition's `switches` decides whether it is applied")


class PlainNormalizer(_NormalizerStep):
    """A normaliser step without options."""

    step: Literal["nfc", "nfd", "nfkc", "nfkd", "nmt", "lowercase", "strip-accents"]


class ReplaceNormalizer(_NormalizerStep):
    """Replaces every occurrence of a string or of a regular expression (Oniguruma syntax)."""

    step: Literal["replace"]
    string: str | None = Field(None, min_length=1, description="the string to replace")
    regex: str | None = Field(None, min_length=1, description="the pattern to replace, instead of a string")
    by: str = Field(description="what stands there afterwards; no references to groups")

    @model_validator(mode="after")
    def _one_pattern(self) -> ReplaceNormalizer:
        if (self.string is None) == (self.regex is None):
            raise ValueError("give either `string` or `regex`")
        return self


class BertNormalizer(_NormalizerStep):
    """BERT's own normaliser. With its defaults it removes marks and joiners, so every option is spelled out."""

    step: Literal["bert"]
    clean_text: bool = Field(description="delete control and format characters; the joiners are among them")
    handle_chinese_chars: bool = Field(description="put spaces around Chinese characters")
    strip_accents: bool | None = Field(description="remove nonspacing marks; null means as `lowercase`")
    lowercase: bool


class MetaspacePreTokenizer(Settings):
    """Turns spaces into ▁ (U+2581) and splits in front of each."""

    step: Literal["metaspace"]
    prepend: Literal["always", "first", "never"] = Field("always", description="when a text gets a ▁ in front")


class DigitsPreTokenizer(Settings):
    """Splits numbers off."""

    step: Literal["digits"]
    individual: bool = Field(True, description="each digit alone, not only runs of digits")


class PlainPreTokenizer(Settings):
    """A pre-tokenizer step without options."""

    step: Literal["bert", "whitespace", "punctuation"]


NormalizerStep = Annotated[PlainNormalizer | ReplaceNormalizer | BertNormalizer, Field(discriminator="step")]
PreTokenizerStep = Annotated[
    MetaspacePreTokenizer | DigitsPreTokenizer | PlainPreTokenizer, Field(discriminator="step")
]


class SpecialToken(Settings):
    """One special token; it is never normalised and never split."""

    token: str = Field(min_length=1)
    id: int = Field(ge=0)
    lstrip: bool = Field(False, description="also takes the white space before it")

    @field_validator("token")
    @classmethod
    def _no_ordinary_text(cls, token: str) -> str:
        if is_ordinary(token):
            raise ValueError(
                "is ordinary text, in which it would be taken for the special token; write [pad] or <pad>"
            )
        return token


class SpecialTokens(Settings):
    """The five special tokens. The trainers put them first, so their ids are 0 to 4 in some order."""

    pad: SpecialToken
    unk: SpecialToken
    cls: SpecialToken
    sep: SpecialToken
    mask: SpecialToken
    bos: str | None = Field(None, description="which of the five serves as begin of sequence, if any")
    eos: str | None = Field(None, description="which of the five serves as end of sequence, if any")

    def by_id(self) -> list[SpecialToken]:
        """The five in the order of their ids."""
        return sorted((self.pad, self.unk, self.cls, self.sep, self.mask), key=lambda special: special.id)

    @model_validator(mode="after")
    def _consistent(self) -> SpecialTokens:
        five = self.by_id()
        if [special.id for special in five] != list(range(5)):
            raise ValueError(f"the five ids must be 0 to 4, not {[special.id for special in five]}")
        tokens = [special.token for special in five]
        if len(set(tokens)) != 5:
            raise ValueError(f"the five tokens must differ: {tokens}")
        for name, token in (("bos", self.bos), ("eos", self.eos)):
            if token is not None and token not in tokens:
                raise ValueError(f"{name} must be one of the five tokens, not {token!r}")
        return self


class PostProcessor(Settings):
    """Templates that wrap one segment or two: special tokens, ``$A``, ``$B``, each with ``:type id`` (default 0)."""

    single: str
    pair: str


class TokenizerDefinition(Settings):
    """All that describes a tokenizer but its vocabulary."""

    description: str = Field(description="one line for people; not part of the identity")
    algorithm: Literal["unigram", "wordpiece"]
    vocabulary_size: int = Field(ge=16, le=MAX_ENTRIES, description="entries, the five special tokens included")
    switches: dict[str, bool] = Field({}, description="normaliser steps that can be turned on and off, by name")
    normalizer: list[NormalizerStep]
    pre_tokenizer: list[PreTokenizerStep] = Field(
        min_length=1, description="without any, training needs far more memory"
    )
    decoder: Literal["metaspace", "wordpiece"]
    special_tokens: SpecialTokens
    post_processor: PostProcessor
    model_max_length: int = Field(ge=8, description="tokens, special ones included")
    keeps: list[Literal["marks", "joiners"]] = Field(
        description="what the normaliser promises not to lose: combining marks, joiners (U+200C, U+200D)"
    )
    scripts: list[str] | None = Field(
        None, min_length=1, description="the scripts that it is meant for; the stage fails on a corpus in another one"
    )
    hard_words: list[str] = Field(
        description="words to check, beside the built-in ones of each script and held-out text"
    )

    @field_validator("scripts")
    @classmethod
    def _known_scripts(cls, scripts: list[str] | None) -> list[str] | None:
        if problem := next(filter(None, map(script_name_problem, scripts or ())), None):
            raise ValueError(problem)
        return scripts

    def steps(self) -> list[tuple[int, NormalizerStep]]:
        """The normaliser steps that are on, each with its number in the file."""
        return [
            (number, step)
            for number, step in enumerate(self.normalizer)
            if step.switch is None or self.switches[step.switch]
        ]

    def switched(self, switches: Mapping[str, bool]) -> TokenizerDefinition:
        """The definition with some of its switches set.

        Raises:
            UserError: it has no such switch; begins with the switch's name.
        """
        for name in switches:
            if name not in self.switches:
                there = f"there are {', '.join(self.switches)}" if self.switches else "it has none"
                raise UserError(f"{name}: the definition has no switch of that name; {there}")
        return self.model_copy(update={"switches": self.switches | dict(switches)})

    @model_validator(mode="after")
    def _switches(self) -> TokenizerDefinition:
        named = {step.switch for step in self.normalizer if step.switch is not None}
        if missing := sorted(named - set(self.switches)):
            raise ValueError(f"switches: {missing[0]!r}, which a normaliser step names, is missing; say true or false")
        if idle := sorted(set(self.switches) - named):
            raise ValueError(f"switches: {idle[0]!r} is named by no normaliser step")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> TokenizerDefinition:
        if self.algorithm == "unigram" and self.decoder == "wordpiece":
            raise ValueError("decoder wordpiece needs algorithm wordpiece")
        has_metaspace = any(isinstance(step, MetaspacePreTokenizer) for step in self.pre_tokenizer)
        if (self.decoder == "metaspace") != has_metaspace:
            raise ValueError("decoder metaspace and pre_tokenizer step metaspace go together")
        tokens = {special.token for special in self.special_tokens.by_id()}
        for name, segments in (("single", ["$A"]), ("pair", ["$A", "$B"])):
            items = []
            for item in getattr(self.post_processor, name).split():
                head, colon, type_id = item.partition(":")
                if colon and type_id not in ("0", "1"):
                    raise ValueError(f"post_processor.{name}: {item!r}: a type id is 0 or 1")
                items.append(head)
            unknown = [item for item in items if item not in tokens and not item.startswith("$")]
            if unknown:
                raise ValueError(f"post_processor.{name}: {unknown[0]!r} is none of the special tokens")
            if [item for item in items if item.startswith("$")] != segments:
                raise ValueError(f"post_processor.{name}: holds {' and '.join(segments)} once each, in this order")
        return self

    def content(self) -> dict[str, Any]:
        """What decides the tokenizer, as plain JSON values: all but the description."""
        return self.model_dump(mode="json", exclude={"description"})


def definitions_folder() -> Path:
    """Where the built-in definitions lie: in the package (wheel), else at the root of the repository."""
    packaged = Path(__file__).with_name("tokenizer_definitions")
    return packaged if packaged.is_dir() else Path(__file__).parents[1] / "tokenizers"


def built_in_definitions() -> list[str]:
    """Names of the built-in definitions."""
    return sorted(path.stem for path in definitions_folder().glob("*.yaml"))


def is_definition_path(definition: str) -> bool:
    """Whether a recipe's ``tokenizer.definition`` is a path of the user's, not the name of a built-in one."""
    return "/" in definition or definition.endswith((".yaml", ".yml"))


def check_definition_name(definition: str) -> None:
    """Check that a name is a built-in one; paths pass.

    Raises:
        UserError: there is no such definition.
    """
    names = built_in_definitions()
    if is_definition_path(definition) or definition in names:
        return
    near = difflib.get_close_matches(definition, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}, or the path of a .yaml file"
    raise UserError(f"no tokenizer definition {definition!r}: {hint}")


def load_definition(definition: str) -> TokenizerDefinition:
    """Read and validate a definition.

    Args:
        definition: the name of a built-in one, or a path.

    Raises:
        UserError: there is no such definition, or the file is wrong; one line that names file, place and value.
    """
    check_definition_name(definition)
    path = Path(definition) if is_definition_path(definition) else definitions_folder() / f"{definition}.yaml"
    name = shown(path)
    if problem := file_problem(path):
        raise UserError(f"{name}: tokenizer definition: {problem}")
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{name}: a tokenizer definition is a mapping; see the built-in `template`")
    try:
        loaded = TokenizerDefinition.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{name}: {_first_line(error)}") from None
    if is_definition_path(definition):  # the tests try the built-in ones
        for number, step in enumerate(loaded.normalizer):
            if isinstance(step, ReplaceNormalizer) and step.regex is not None:
                check_pattern(step.regex, f"{name}: normalizer.{number}")
    return loaded


def _first_line(error: ValidationError) -> str:
    """The first of pydantic's complaints as one line: place, complaint, value."""
    first = error.errors(include_url=False)[0]
    parts = first["loc"]  # behind the number of a step it has the step's kind, which is no key of the file
    place = ".".join(str(one) for before, one in zip(("", *parts), parts, strict=False) if not isinstance(before, int))
    complaint = first["msg"].removeprefix("Value error, ")
    value = first["input"]
    shown = "" if isinstance(value, dict | list) else f" (got {value!r})"
    more = f"; {error.error_count() - 1} more" if error.error_count() > 1 else ""
    return f"{place + ': ' if place else ''}{complaint}{shown}{more}"
