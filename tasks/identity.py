"""What decides a stage's result, as canonical JSON, and the fingerprint made of it.

Two extremes were rejected. A hash of the code invalidates everything at each refactoring; a completion marker that
is blind to the settings serves stale results. The rule: a fingerprint covers the stage's name, its ``version``, the
settings as asked, the content of the user's files, and the *digests* of the inputs. Settings marked ``EXECUTION``
(how often to log) are left out. The encoder raises on everything that it cannot encode stably.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from tasks.contract import EXECUTION, USER_FILES, Stage
from tasks.user_files import COMPRESSIONS, user_files


def identity_of(settings: BaseModel, digest_of_file: Callable[[Path], str]) -> dict[str, Any]:
    """The settings that decide the result, as plain JSON values.

    Fields that hold the user's paths are replaced by the SHA-256 of each file and the ending that tells its format, in
    sorted order of the names; so moving a file changes nothing, and editing it does. A model can add what its names
    stand for (the content of a built-in definition) through a method ``identity_inputs() -> dict``, and leave out what
    its other values make meaningless (settings of an engine that is not chosen) through ``identity_unused() -> set``.

    Raises:
        UserError: a path matches no file.
    """
    identity: dict[str, Any] = {}
    unused: set[str] = getattr(settings, "identity_unused", set)()
    for name, field in type(settings).model_fields.items():
        marks = list(_marks(field.annotation, field.metadata))
        if EXECUTION in marks or name in unused:
            continue
        value = getattr(settings, name)
        if USER_FILES in marks:
            value = _contents(value, digest_of_file)
        identity[name] = _plain(value, digest_of_file)
    extra = getattr(settings, "identity_inputs", None)
    if extra is not None:
        identity.update(_plain(extra(), digest_of_file))
    return identity


def fingerprint_of(stage: Stage, identity: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """SHA-256 (64 hexadecimal digits) over stage, version, identity and the inputs' digests by name."""
    return hashlib.sha256(
        canonical({"stage": stage.name, "version": stage.version, "identity": identity, "inputs": dict(inputs)})
    ).hexdigest()


def canonical(value: Any) -> bytes:
    """The one JSON encoding that equal values share: sorted keys, no spaces, UTF-8.

    Raises:
        TypeError: a value that has no stable encoding (a set, a function, an object, a key that is no string).
        ValueError: a number that JSON does not have (NaN, infinity).
    """
    return json.dumps(
        _checked(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode()


def differences(old: Any, new: Any, place: str = "") -> list[tuple[str, Any, Any]]:
    """Where two identities differ: (dotted place, old value, new value); a missing value is None."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        pairs = [(key, old.get(key), new.get(key)) for key in keys]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(str(index), *pair) for index, pair in enumerate(zip(old, new, strict=True))]
    else:
        return [] if old == new else [(place, old, new)]
    return [change for key, a, b in pairs for change in differences(a, b, f"{place}.{key}" if place else key)]


def _marks(annotation: Any, metadata: list[Any]) -> Iterator[Any]:
    """The marks on a field, also those inside its type, as in ``list[UserPath]``; not those of nested models."""
    yield from metadata
    for part in get_args(annotation):
        if hasattr(part, "__metadata__"):
            yield from part.__metadata__
        yield from _marks(part, [])


def _contents(value: Any, digest_of_file: Callable[[Path], str]) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        return [digest_of_file(file) + _ending(file) for file in user_files(value)]
    return [digest for item in value for digest in _contents(item, digest_of_file)]


def _ending(file: Path) -> str:
    """What format ``auto`` goes by: ``.jsonl``, ``.jsonl.gz``."""
    ending = file.suffix.lower()
    return Path(file.stem).suffix.lower() + ending if ending in COMPRESSIONS else ending


def _plain(value: Any, digest_of_file: Callable[[Path], str]) -> Any:
    if isinstance(value, BaseModel):
        return identity_of(value, digest_of_file)
    if isinstance(value, Mapping):
        return {key: _plain(item, digest_of_file) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, digest_of_file) for item in value]
    return value


def _checked(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no canonical encoding")
        # 1 and 1.0 are the same setting, whichever way the recipe writes it.
        return int(value) if value.is_integer() else value
    if isinstance(value, list | tuple):
        return [_checked(item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"keys must be strings: {list(value)}")
        return {key: _checked(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} has no canonical encoding: {value!r}")
