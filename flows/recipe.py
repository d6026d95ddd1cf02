"""Recipes: one YAML file that describes a whole experiment, composed of the stages' own settings.

The file is parsed strictly (a key twice, an unknown key, a wrong type are errors of one line that name the place),
since a misspelt setting that is silently ignored costs a training run.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from eval import model_files, task_files
from eval.definitions import named
from eval.prices import CostSettings
from eval.publishing import PublishingSettings
from eval.settings import EvaluationSettings
from tasks.contract import Settings, UserError
from tasks.corpus import CorpusSettings
from tasks.packing import PackingSettings
from tasks.pretraining.settings import ModelSettings, PretrainingSettings, sentence_order_problem
from tasks.strict_yaml import cut, nearest, parse_yaml, read_yaml
from tasks.tokenizer_settings import TokenizerSettings

_DEFINED = {"tasks": task_files.expanded, "compare_with": model_files.expanded}
"""Parts of ``evaluation`` whose entries may stand in files of their own, and what puts the files' content there."""


class Recipe(Settings):
    """A whole experiment. Each part is the settings model of the stage that it configures."""

    name: str = Field(max_length=60)
    """Lower-case letters, digits and dashes; it names the run on the page and in the report."""
    description: str = ""
    corpus: CorpusSettings
    tokenizer: TokenizerSettings
    packing: PackingSettings
    model: ModelSettings
    pretraining: PretrainingSettings
    evaluation: EvaluationSettings
    cost: CostSettings = CostSettings()
    publishing: PublishingSettings = Field(default_factory=PublishingSettings)

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
            raise ValueError("should be lower-case letters (a to z), digits and dashes, such as my-language")
        return name

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Recipe:
        if self.packing.sequence_length > self.model.max_positions:
            raise ValueError(
                f"packing.sequence_length {self.packing.sequence_length} is longer than "
                f"model.max_positions {self.model.max_positions}"
            )
        pairs = self.packing.mode == "sentence-pairs"
        if pairs != (self.pretraining.objective == "mlm+sop"):
            raise ValueError(
                f"packing.mode {self.packing.mode} does not go with pretraining.objective "
                f"{self.pretraining.objective}; sentence order needs sentence-pairs, and only it does"
            )
        if problem := sentence_order_problem(self.model, self.pretraining):
            raise ValueError(problem)
        if self.corpus.script and (problem := self.tokenizer.script_problem(self.corpus.script.names)):
            raise ValueError(problem)
        probe = self.pretraining.probe
        if probe is not None and probe.task not in self.evaluation.tasks:
            raise ValueError(
                f"pretraining.probe.task {probe.task} is no task of evaluation.tasks; "
                f"{nearest(probe.task, list(self.evaluation.tasks))}"
            )
        sources = [source.name for source in self.corpus.sources]
        for name in self.publishing.source_licenses:
            if name not in sources:
                raise ValueError(
                    f"publishing.source_licenses.{name} is no source of corpus.sources; {nearest(name, sources)}"
                )
        for name, task in self.evaluation.tasks.items():
            if task.fine_tuning.max_length > self.model.max_positions:
                raise ValueError(
                    f"evaluation.tasks.{name}.fine_tuning.max_length {task.fine_tuning.max_length} is longer than "
                    f"model.max_positions {self.model.max_positions}; lower it, or raise model.max_positions"
                )
        return self


def builtin_recipes() -> dict[str, Path]:
    """The recipes that come with sahajflow, by name."""
    folder = resources.files("flows") / "recipes"
    return {Path(item.name).stem: Path(str(item)) for item in sorted(folder.iterdir(), key=lambda item: item.name)}


def find_recipe(recipe: str) -> Path:
    """The file behind a built-in name or a path.

    Raises:
        UserError: there is no such recipe.
    """
    builtin = builtin_recipes()
    if recipe in builtin:
        return builtin[recipe]
    try:
        path = Path(recipe).expanduser().absolute()
        if recipe and path.is_dir():
            raise UserError(f"{recipe}: is a folder; name a recipe file in it")
        if path.is_file():
            return path
        if recipe and path.exists():
            raise UserError(f"{recipe}: is not a regular file; copy its content to one")
    except (OSError, RuntimeError) as error:  # a name too long, no permission; ~nobody
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{cut(recipe)}: cannot be read ({reason})") from None
    if path.suffix in {".yaml", ".yml"} or "/" in recipe:
        raise UserError(f"{cut(recipe)}: no such file")
    raise UserError(f"{cut(recipe) or 'RECIPE'}: no such recipe; {nearest(recipe, list(builtin))}")


def load_recipe(recipe: str, changes: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        recipe: a built-in name, or the path of a YAML file. Relative paths in a file start at its folder; those of
            a built-in recipe, which lies in the package, at the current folder.
        changes: ``"key=value"`` with dotted keys, applied before the check; relative paths there start where the
            recipe's own do.

    Raises:
        UserError: one line with file, place, value and the nearest valid choice.
    """
    path = find_recipe(recipe)
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}: a recipe is a mapping of {', '.join(Recipe.model_fields)}")
    for change in changes:
        for key in _DEFINED:
            _change_part(data, key, named)
        _apply(data, change)
    folder = Path.cwd() if recipe in builtin_recipes() else path.parent
    for key, expanded in _DEFINED.items():
        place = f"{_where(recipe, path, changes, f'evaluation.{key}')}: evaluation.{key}"
        _change_part(data, key, lambda part: expanded(part, folder, place))  # noqa: B023 (called at once)
    try:
        return Recipe.model_validate(data, context={"folder": folder})
    except ValidationError as error:
        place, text = _first_problem(error, data)
        told = f"{cut(place)}: {text}" if place else text
        raise UserError(f"{_where(recipe, path, changes, place)}: {told}".replace("\n", " ")) from None


def _where(recipe: str, path: Path, changes: Sequence[str], place: str) -> str:
    """The recipe, with the change on the command line that the place comes from, if one does."""
    for change in reversed(changes):
        if f"{place}.".startswith(change.partition("=")[0] + "."):
            return f"--set {cut(change)} on {recipe}"
    return f"{recipe} with --set" if changes else str(path)


def _change_part(data: dict[str, Any], key: str, change: Callable[[Any], Any]) -> None:
    evaluation = data.get("evaluation")
    if isinstance(evaluation, dict) and key in evaluation:
        evaluation[key] = change(evaluation[key])


def _apply(data: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise UserError(f"--set {cut(change)}: is not key=value")
    value = parse_yaml(text, f"--set {cut(change)}", numbered=False)
    *parents, last = key.split(".")
    place: Any = data
    for part in parents:
        if isinstance(place, list):
            place = place[_index(place, part, change)]
        elif isinstance(place, dict):
            if place.get(part) is None:
                place[part] = {}
            place = place[part]
        else:
            raise UserError(f"--set {cut(change)}: {cut(part)} lies below {_shown(place)}, which has no keys")
    if isinstance(place, list):
        place[_index(place, last, change)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise UserError(f"--set {cut(change)}: {cut(last)} lies below {_shown(place)}, which has no keys")


def _index(items: list[Any], part: str, change: str) -> int:
    if part not in {str(number) for number in range(len(items))}:
        raise UserError(f"--set {cut(change)}: {cut(part)} is no index of a list of {len(items)} (they start at 0)")
    return int(part)


def _first_problem(error: ValidationError, data: Any) -> tuple[str, str]:
    """The place of the first problem as the user wrote it, and what is wrong there, with the nearest valid choice."""
    problems = error.errors(include_url=False)
    places = [".".join(_written(problem, data)) for problem in problems]
    # A misspelt key makes another one missing; the spelling is what the user has to mend.
    first = next((number for number, one in enumerate(problems) if one["type"] == "extra_forbidden"), 0)
    # Of a value that may be one of several types, the one that fits as far as to an item of it.
    first = next((number for number, place in enumerate(places) if place.startswith(places[first] + ".")), first)
    problem, place = problems[first], places[first]
    others = {other for other in places if not f"{place}.".startswith(f"{other}.")}
    more = f" (and {len(others)} more)" if others else ""
    if problem["type"] == "extra_forbidden":
        return place, f"unknown key; {nearest(str(problem['loc'][-1]), _keys_at(problem['loc'][:-1]))}{more}"
    if problem["type"] == "missing":
        return place, f"is missing{more}"
    if problem["type"] == "union_tag_not_found":
        return f"{place}.{problem['ctx']['discriminator'].strip(chr(39))}", f"is missing{more}"
    if problem["type"] == "union_tag_invalid":
        tag, key = problem["ctx"]["tag"], problem["ctx"]["discriminator"].strip("'")
        choices = problem["ctx"]["expected_tags"].replace("'", "").split(", ")
        return f"{place}.{key}", f"{_shown(tag)}: {nearest(tag, choices)}{more}"
    told = [_told(one) for one, other in zip(problems, places, strict=True) if other == place]
    text = " or ".join([told[0], *(one.removeprefix("should be ") for one in told[1:])])
    # Who checks several keys together names them and their values.
    whole = isinstance(problem["input"], dict) or (problem["type"] == "value_error" and not place)
    return place, f"{text}{more}" if whole else f"{_shown(problem['input'])}: {text}{more}"


def _told(problem: Any) -> str:
    if problem["type"] in {"model_type", "model_attributes_type", "dict_type"}:
        return "should be a mapping"
    text: str = problem["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    return text.replace("valid tuple", "valid list").replace("Tuple should", "should")


def _written(problem: Any, data: Any) -> Iterator[str]:
    """The parts of pydantic's location that stand in the file: it also names union members, which do not."""
    location = problem["loc"]
    for number, part in enumerate(location):
        if isinstance(data, list):
            inside = isinstance(part, int) and part < len(data)
        else:
            inside = isinstance(data, dict) and part in data
        if inside:
            data = data[part]
            yield str(part)
        elif problem["type"] == "missing" and number == len(location) - 1:
            yield str(part)


def _shown(value: Any) -> str:
    """A value as the user wrote it, or nearly so."""
    return cut(repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _keys_at(location: tuple[int | str, ...]) -> list[str]:
    """The valid keys of the settings model at a place."""
    models: list[type[BaseModel]] = [Recipe]
    for part in location:
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        if fields:
            models = [model for field in fields for model in _models_in(field.annotation)]
        elif len(models) > 1:
            # A union member's tag: keep the models that declare it as their kind.
            models = [model for model in models if part in get_args(model.model_fields["kind"].annotation)] or models
    return sorted({key for model in models for key in model.model_fields})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and not get_args(annotation):
        return [annotation] if issubclass(annotation, BaseModel) else []
    if get_origin(annotation) in {Union, types.UnionType, list, tuple, dict} or hasattr(annotation, "__metadata__"):
        return [model for part in get_args(annotation) for model in _models_in(part)]
    return []
