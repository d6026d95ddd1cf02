"""The few system calls that make a result survive a kill or a power cut, in one place.

A file is durable when its bytes *and* the folder entry that names it are on the disk, so every rename here is
followed by a sync of the folder that it changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any


def sync_path(path: Path) -> None:
    """Ask the operating system to put a file's bytes, or a folder's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path, *, without: tuple[str, ...] = ()) -> None:
    """Sync a file, or a folder with all that lies in it; ``without`` names sub-folders to leave out."""
    if path.is_dir():
        for child in sorted(path.iterdir()):
            if child.name not in without:
                sync_tree(child)
    sync_path(path)


def move(source: Path, target: Path) -> None:
    """Rename within one file system and sync both folders. ``target`` must not exist as a folder with content."""
    os.rename(source, target)
    sync_path(target.parent)
    if source.parent != target.parent:
        sync_path(source.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file so that a reader sees the old content or the new one, never a part."""
    building = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    with open(building, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    move(building, path)


def remove(path: Path) -> None:
    """Remove a file or a folder with its content; nothing happens if there is none, or if another removes it too."""
    while path.is_dir() and not path.is_symlink():
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_in(folder: Path, *, without: tuple[str, ...] = ()) -> list[Path]:
    """All files below a folder, sorted by their relative path; ``without`` names top-level entries to leave out."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if path.relative_to(folder).parts[0] not in without)
