"""YAML for people's settings: strict where a slip would be silent, and safe to read from anybody.

PyYAML takes the last of two equal keys, turns `2024-01-01` into a date and one alias into one shared object, so that a
change at one place is a change at the other. Here the first two are errors with their line, and nothing is shared.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tasks.contract import UserError

MAXIMUM_DEPTH = 50
"""Levels of a recipe's mappings and lists; the settings have 6."""

MAXIMUM_VALUES = 100_000
"""Values in a recipe, those behind aliases counted each time: a few lines of nested aliases can stand for billions."""

MAXIMUM_DIGITS = 100
"""Of a whole number: Python refuses to print much longer ones."""


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML 1.1 as PyYAML reads it, but only what JSON has too, and no key twice."""

    def get_single_data(self) -> Any:
        root = self.get_single_node()
        waiting, seen = [root] if root else [], set()
        while waiting:
            node = waiting.pop()
            if id(node) in seen:  # an alias
                continue
            seen.add(id(node))
            _check_node(node)
            if isinstance(node, yaml.MappingNode):
                waiting += [value for _, value in reversed(node.value)]
            elif isinstance(node, yaml.SequenceNode):
                waiting += reversed(node.value)
        return self.construct_document(root) if root else None

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, ArithmeticError):
            problem = f"{cut(node.value)} is no valid {_kind(node)}; quote it if it is text"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


def _check_node(node: yaml.Node) -> None:
    problem = None
    if _kind(node) == "timestamp":
        problem = f"{cut(node.value)} is read as a date; quote it"
    elif _kind(node) not in {"map", "seq", "str", "int", "float", "bool", "null"}:
        problem = f"the tag {cut(node.tag)} is not known; leave it out, or quote the value"
    elif isinstance(node, yaml.MappingNode):
        seen = set()
        for key, _ in node.value:
            if _kind(key) not in {"str", "merge"}:
                told = (
                    f"{cut(key.value)} is read as {_kind(key)}"
                    if isinstance(key, yaml.ScalarNode)
                    else f"a {_kind(key)}"
                )
                problem = f"as a key, {told}: keys are strings; quote it"
            elif key.value in seen:
                problem = f"the key {cut(key.value)} stands twice; leave one out"
            if problem:
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
    if problem:
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _kind(node: yaml.Node) -> str:
    """The node's type in YAML's own words, such as ``int``, or a foreign tag."""
    tag: str = node.tag
    return tag.removeprefix("tag:yaml.org,2002:")


def parse_yaml(text: str, where: str, *, numbered: bool) -> Any:
    """Parse YAML; ``where`` begins the message of a UserError, with the number of the line if ``numbered``."""
    try:
        return _unshared(yaml.load(text, Loader=_StrictLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}" if mark and numbered else ""
        problem = " ".join(str(getattr(error, "problem", None) or getattr(error, "reason", None) or error).split())
        if mark and "cannot start any token" in problem and text.split("\n")[mark.line][mark.column :][:1] == "\t":
            problem = "a tab in front of text; indent by spaces"
        remedy = "" if isinstance(error, yaml.constructor.ConstructorError) else "; mend it, or quote the value"
        if problem.startswith("but "):  # the end of a sentence that the context begins
            problem = f"{getattr(error, 'context', '')}, {problem}"
        raise UserError(f"{where}{place}: is not valid YAML: {problem}{remedy}") from None
    except RecursionError:
        raise UserError(f"{where}: is nested deeper than {MAXIMUM_DEPTH} levels") from None
    except UnicodeEncodeError:
        raise UserError(f"{where}: has bytes that are not UTF-8") from None


def _unshared(data: Any) -> Any:
    """A copy in which every alias has a value of its own, so that a change at one place is none at another."""
    count = 0

    def copy(value: Any, above: tuple[int, ...]) -> Any:
        nonlocal count
        count += 1
        problem = None
        if id(value) in above:
            problem = "an alias lies inside its own anchor; write out what it stands for"
        elif len(above) > MAXIMUM_DEPTH:
            problem = f"nested deeper than {MAXIMUM_DEPTH} levels; no setting lies so deep"
        elif count > MAXIMUM_VALUES:
            problem = f"more than {MAXIMUM_VALUES:,} values, aliases written out; a recipe has some hundreds"
        elif isinstance(value, int) and abs(value) >= 10**MAXIMUM_DIGITS:
            problem = f"a number of more than {MAXIMUM_DIGITS} digits; quote it if it is text"
        if problem:
            raise yaml.constructor.ConstructorError(None, None, problem, None)
        inside = (*above, id(value))
        if isinstance(value, dict):
            return {key: copy(item, inside) for key, item in value.items()}
        return [copy(item, inside) for item in value] if isinstance(value, list) else value

    return copy(data, ())


def read_yaml(path: Path) -> Any:
    """Parse a file. Raises UserError with the file and, where there is one, the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    return parse_yaml(text, str(path), numbered=True)


def cut(text: Any, characters: int = 100) -> str:
    """A value as it may stand in a message: on one line, and not endlessly long."""
    line = " ".join(str(text).split())
    return line if len(line) <= characters else f"{line[:characters]}..."


def nearest(word: str, choices: Sequence[str]) -> str:
    """What a message says behind a word that is none of the choices: the closest one, or all of them."""
    close = difflib.get_close_matches(word[:200], choices, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(choices)}"
