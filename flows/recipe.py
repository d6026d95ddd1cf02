"""Recipes: one YAML file that describes a whole experiment, composed of the stages' own settings.

The file is parsed strictly (a key twice, an unknown key, a wrong type are errors of one line that name the place),
since a misspelt setting that is silently ignored costs a training run.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from eval.settings import EvaluationSettings
from tasks.contract import Settings, UserError
from tasks.corpus import CorpusSettings
from tasks.packing import PackingSettings
from tasks.pretraining.settings import ModelSettings, PretrainingSettings
from tasks.tokenizer_training import TokenizerSettings


class Recipe(Settings):
    """A whole experiment. Each part is the settings model of the stage that it configures."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=60)
    """Lower-case letters, digits and dashes; it names the run on the page and in the report."""
    description: str = ""
    corpus: CorpusSettings
    tokenizer: TokenizerSettings
    packing: PackingSettings
    model: ModelSettings
    pretraining: PretrainingSettings
    evaluation: EvaluationSettings

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
    path = Path(recipe).expanduser().absolute()
    if path.is_file():
        return path
    if path.suffix in {".yaml", ".yml"} or "/" in recipe:
        raise UserError(f"{recipe}: no such file")
    raise UserError(f"{recipe}: no such recipe; {_nearest(recipe, list(builtin))}")


def load_recipe(recipe: str, changes: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        recipe: a built-in name, or the path of a YAML file; relative paths in it start at its folder.
        changes: ``"key=value"`` with dotted keys, applied before the check; relative paths there start at the
            current folder.

    Raises:
        UserError: one line with file, place, value and the nearest valid choice.
    """
    path = find_recipe(recipe)
    data = _read_yaml(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}: a recipe is a mapping of {', '.join(Recipe.model_fields)}")
    for change in changes:
        _apply(data, change)
    try:
        return Recipe.model_validate(data, context={"folder": path.parent})
    except ValidationError as error:
        where = f"--set {', '.join(changes)} on {recipe}" if changes else str(path)
        raise UserError(f"{where}: {_one_line(error, data)}") from None


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML 1.1 as PyYAML reads it, except that a key that stands twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value} stands twice", key.start_mark
                )
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{place}: is not valid YAML: {getattr(error, 'problem', None) or error}") from None


def _apply(data: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise UserError(f"--set {change}: is not key=value")
    try:
        value = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError:
        raise UserError(f"--set {change}: the value is not valid YAML; quote it") from None
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
            raise UserError(f"--set {change}: {part} lies below {place!r}, which has no keys")
    if isinstance(place, list):
        place[_index(place, last, change)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise UserError(f"--set {change}: {last} lies below {place!r}, which has no keys")


def _index(items: list[Any], part: str, change: str) -> int:
    if not part.isdigit() or int(part) >= len(items):
        raise UserError(f"--set {change}: {part} is no index of a list of {len(items)} (they start at 0)")
    return int(part)


def _one_line(error: ValidationError, data: Any) -> str:
    """The first problem, with its place as the user wrote it and the nearest valid choice."""
    problems = error.errors(include_url=False)
    # A misspelt key makes another one missing; the spelling is what the user has to mend.
    problem = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
    place = ".".join(_written(problem["loc"], data))
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if problem["type"] == "extra_forbidden":
        key = str(problem["loc"][-1])
        return f"{place}: unknown key; {_nearest(key, _keys_at(problem['loc'][:-1]))}{more}"
    if problem["type"] == "missing":
        return f"{place}: is missing{more}"
    text = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if not place:
        return f"{text}{more}"
    needed = f"should be {text}" if problem["msg"].startswith("Input should be") else text
    return f"{place}: {problem['input']!r}: {needed}{more}".replace("\n", " ")


def _written(location: tuple[int | str, ...], data: Any) -> Iterator[str]:
    """The parts of pydantic's location that stand in the file: it also names union members, which do not."""
    for number, part in enumerate(location):
        inside = (isinstance(data, dict) and part in data) or (isinstance(data, list) and isinstance(part, int))
        if inside:
            data = data[part]
            yield str(part)
        elif number == len(location) - 1:
            yield str(part)


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


def _nearest(word: str, choices: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(choices)}"
