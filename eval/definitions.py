"""Definitions: a part of a recipe in a YAML file of its own, named by path, or by name if it is a built-in one."""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tasks.contract import UserError
from tasks.strict_yaml import read_yaml
from tasks.user_files import file_problem, shown

_ENDINGS = (".yaml", ".yml")


def builtin(folder: str) -> dict[str, Path]:
    """The definitions that come with sahajflow in a folder of the package, by name."""
    found = resources.files("eval") / folder
    return {Path(item.name).stem: Path(str(item)) for item in sorted(found.iterdir(), key=lambda item: item.name)}


def named(parts: Any) -> Any:
    """A mapping whose values that are a name or path alone become mappings, so that keys can be set beside it."""
    if not isinstance(parts, dict):
        return parts
    return {name: {"definition": part} if isinstance(part, str) else part for name, part in parts.items()}


def read_definition(
    definition: Any, kind: str, model: type[BaseModel], known: dict[str, Path], folder: Path, place: str
) -> dict[str, Any]:
    """The keys that stand in a file, which is valid by itself, with absolute paths.

    Args:
        definition: what the recipe says: a name, or a path that starts at ``folder``.
        kind: what is defined, in one word, for messages.
        model: the settings that the file holds; relative paths in it start at the file's folder.
        known: the built-in ones.
        folder: where relative paths start.
        place: where the recipe says so, for messages.

    Raises:
        UserError: there is no such file, or it is wrong.
    """
    if not isinstance(definition, str):
        valid = f"the name of a built-in {kind} or the path of a {kind} file"
        raise UserError(f"{place}: {definition!r} should be {valid}")
    if definition in known:
        path = known[definition]
    elif Path(definition).suffix not in _ENDINGS:
        near = difflib.get_close_matches(definition, known, n=1)
        hint = f"did you mean {near[0]}" if near else f"known are {', '.join(known)}"
        raise UserError(f"{place}: no built-in {kind} {definition[:60]!r}; {hint}; else give the path of a .yaml file")
    else:
        try:
            path = folder / Path(definition).expanduser()
        except RuntimeError:
            raise UserError(f"{place}: {definition[:60]!r} names an unknown user; write the path out") from None
        if problem := file_problem(path):
            raise UserError(f"{place}: {shown(path)}: {problem}")
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{shown(path)}: a {kind} is a mapping of {', '.join(model.model_fields)}")
    try:
        settings = model.model_validate(values, context={"folder": path.parent})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        told = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            told = f"unknown key; known are {', '.join(model.model_fields)}" if "." not in where else "unknown key"
        raise UserError(f"{shown(path)}: {f'{where}: ' if where else ''}{told}".replace("\n", " ")) from None
    return settings.model_dump(mode="json", exclude_unset=True)
