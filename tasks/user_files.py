"""The user's own files: finding them by path or glob, and reading a line of JSON from them.

Whatever is wrong with them is a :class:`~tasks.contract.UserError` of one line.
"""

from __future__ import annotations

import json
import os
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from tasks.contract import UserError

COMPRESSIONS = (".gz", ".xz", ".zst")
"""Endings behind which another one says what the file holds."""


def user_files(pattern: str, place: str = "") -> list[Path]:
    """The regular files that a path or glob names, sorted; links that lead to one file count once.

    A path that exists is never read as a glob, and neither are the leading folders that exist: brackets are common in
    names.

    Args:
        pattern: the path or glob.
        place: where the recipe says so, for messages.

    Raises:
        UserError: there is none, or what is there is not a regular file that can be read.
    """
    path = Path(pattern)
    place = f"{place}: " if place else ""
    if os.path.lexists(path) or not has_magic(pattern):
        if problem := file_problem(path):
            raise UserError(f"{place}{shown(path)}: {problem}")
        return [path]
    folder = path.parent
    while not os.path.isdir(folder) and folder != folder.parent:
        folder = folder.parent
    found: dict[str, Path] = {}
    matches = _matches(folder, path.relative_to(folder).parts, place) if "\0" not in pattern else ()
    folders: list[Path] = []
    for match in sorted(matches):
        if os.path.isdir(match):
            folders.append(match)
            continue
        if problem := file_problem(match):
            raise UserError(f"{place}{shown(match)} (of {shown(pattern)}): {problem}")
        found.setdefault(os.path.realpath(match), match)
    if not found and folders:
        inside = shown(folders[0] / "*.jsonl")
        raise UserError(f"{place}{shown(pattern)}: matches folders, but no file; name their files, such as {inside}")
    if not found:
        raise UserError(f"{place}{shown(pattern)}: no file matches; {_what_is_there(path)}")
    return list(found.values())


def _matches(folder: Path, parts: tuple[str, ...], place: str) -> Iterator[Path]:
    """What the parts of a glob name in a folder. ``**`` follows links and enters no folder twice: with two links that
    lead back, each level would have twice as many. A folder that may not be listed is told, not passed over."""

    def cannot_list(error: OSError) -> None:
        raise UserError(f"{place}{shown(error.filename)}: cannot be listed: {error.strerror}; change its permissions")

    first, rest = parts[0], parts[1:]
    if first == "**":
        entered: set[str] = set()
        for path, folders, _ in os.walk(folder, followlinks=True, onerror=cannot_list):
            real = os.path.realpath(path)
            folders[:] = [] if real in entered else sorted(name for name in folders if not name.startswith("."))
            if real not in entered:
                entered.add(real)
                yield from _matches(Path(path), rest or ("*",), place)
        return
    if has_magic(first):
        try:
            os.scandir(folder).close()
        except OSError as error:
            cannot_list(error)
    for name in glob(first, root_dir=folder):
        if not rest:
            yield folder / name
        elif os.path.isdir(folder / name):
            yield from _matches(folder / name, rest, place)


def file_problem(path: Path) -> str | None:
    """Why ``path`` is not a regular file that can be read, with the remedy, or None if it is one."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):
            return "is a link to a file that does not exist; mend the link"
        return f"no such file; {_what_is_there(path)}"
    except OSError as error:  # too long a name, links in a circle, a folder that may not be entered
        return f"cannot be read: {error.strerror}; check the path"
    except ValueError:
        return "no such file; a path holds no NUL character"
    if stat.S_ISDIR(mode):
        return f"is a folder; name its files, such as {shown(path / '*.jsonl')}"
    if not stat.S_ISREG(mode):
        return "is not a regular file but a pipe, socket or device; copy its content to a file"
    return None if os.access(path, os.R_OK) else "cannot be read: Permission denied; change its permissions"


def shown(path: Path | str) -> str:
    """A path as a message of one line shows it: quoted if a control character or a broken one is in it."""
    text = str(path)
    return repr(text) if any(unicodedata.category(character) in _NOT_SHOWN for character in text) else text


def json_object(line: str, place: str, fields: Sequence[str]) -> dict[str, Any]:
    """The JSON object of a line, with proper text in the ``fields`` that will be read.

    Raises:
        UserError: begins with ``place``; what is wrong with the line.
    """
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{place}: not JSON ({error.msg} at column {error.colno}); write one object a line") from None
    except RecursionError:
        raise UserError(f"{place}: JSON that is nested too deeply; write one flat object a line") from None
    except ValueError:  # Python's limit against slow conversions
        raise UserError(f"{place}: a whole number with more than 4300 digits; write it as a string") from None
    if not isinstance(row, dict):
        raise UserError(f"{place}: a {type(row).__name__}, not a JSON object; write one object a line")
    for field in fields:
        if line.count(f'"{field}"') > 1 and _keys_of(line).count(field) > 1:  # Python takes the last
            raise UserError(f"{place}: the field '{field}' occurs more than once; keep one")
    if "\\u" in line:  # the only way to write half a surrogate pair in UTF-8
        values = [row.get(field) for field in fields]
        texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
        try:
            "".join(text for text in texts if isinstance(text, str)).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise UserError(f"{place}: {half} is half a character (a lone surrogate); write both halves") from None
    return row


def _keys_of(line: str) -> list[str]:
    """The keys of a line's JSON object as they are written."""
    keys: list[str] = []

    def take(pairs: list[tuple[str, Any]]) -> None:
        keys[:] = [key for key, _ in pairs]  # the outermost object is the last to be complete

    json.loads(line, object_pairs_hook=take)
    return keys


_NOT_SHOWN = {"Cc", "Cs", "Zl", "Zp"}
"""Unicode categories: control characters, surrogates (bytes that are not UTF-8), separators of lines."""


def _what_is_there(path: Path) -> str:
    """What the user may have meant: the nearest name in the last part of the path that exists."""
    wanted, folder = path.name, path.parent
    while not os.path.isdir(folder) and folder != folder.parent:
        wanted, folder = folder.name, folder.parent
    try:
        names = [name for name in os.listdir(folder) if name != wanted]
    except OSError as error:
        return f"{shown(folder)} cannot be listed: {error.strerror}"
    nearest = get_close_matches(wanted, names, n=1, cutoff=0.4)
    if nearest:
        return f"did you mean {shown(folder / nearest[0])}?"
    return f"nothing in {shown(folder)} has a name like that (relative paths start at the recipe's folder)"
