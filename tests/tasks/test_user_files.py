"""The user's own files: globs, links, and lines of JSON."""

import os
import subprocess
import sys

import pytest

from tasks.contract import UserError
from tasks.user_files import json_object, user_files


def test_two_stars_enter_a_folder_once_however_links_lead_back(tmp_path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "x.txt").write_text("x")
    (tmp_path / "y.txt").write_text("y")
    for name in ("back", "again", "still"):
        (folder / name).symlink_to(tmp_path, target_is_directory=True)
    # In a process of its own, that can be ended: three links lead to 3 ** 40 paths.
    code = "import sys; from tasks.user_files import user_files; print(*user_files(sys.argv[1]), sep='\\n')"
    found = subprocess.run(
        [sys.executable, "-c", code, f"{tmp_path}/**/*.txt"], capture_output=True, text=True, timeout=20, check=True
    )
    assert found.stdout.splitlines() == [str(folder / "x.txt"), str(tmp_path / "y.txt")]


def test_what_a_glob_names(tmp_path):
    for name in ("a/x.txt", "a/b/x.txt", "a/b/c/x.txt", "x.txt", ".hidden/x.txt", "a/.x.txt", "a/b/x.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    elsewhere = tmp_path / "a" / "linked"
    elsewhere.symlink_to(tmp_path / ".hidden", target_is_directory=True)

    def names(pattern):
        return [str(path.relative_to(tmp_path)) for path in user_files(f"{tmp_path}/{pattern}")]

    assert names("**/x.txt") == ["a/b/c/x.txt", "a/b/x.txt", "a/linked/x.txt", "a/x.txt", "x.txt"]
    assert names("a/**/b/**/*.txt") == ["a/b/c/x.txt", "a/b/x.txt"]
    assert names("*/*.txt") == ["a/x.txt"]
    assert names("a/b/**") == ["a/b/c/x.txt", "a/b/x.csv", "a/b/x.txt"]
    assert names("a/*/**/x.txt") == ["a/b/c/x.txt", "a/b/x.txt", "a/linked/x.txt"]
    with pytest.raises(UserError, match="no file matches"):
        names("nowhere*/**/x.txt")


def test_a_folder_that_cannot_be_listed_is_told(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    (tmp_path / "x.txt").write_text("x")
    scandir = os.scandir

    def refusing(path):  # tests may run as a user whom nothing is closed to
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    for pattern in ("**/*.txt", "**/x.txt", "*/*.txt", "closed/*.txt"):
        with pytest.raises(UserError) as raised:
            user_files(f"{tmp_path}/{pattern}", "corpus.sources[0].paths")
        assert str(raised.value) == (
            f"corpus.sources[0].paths: {tmp_path}/closed: cannot be listed: Permission denied; change its permissions"
        )


def test_a_field_that_is_read_occurs_once():
    with pytest.raises(UserError, match=r"^a:1: the field 'text' occurs more than once; keep one$"):
        json_object('{"text": "one", "id": 1, "text": "two"}', "a:1", ["text"])
    # Neither in another object, nor as a value, nor in a field that nobody reads.
    for line in ('{"text": "one", "of": {"text": "two"}}', '{"text": "text"}', '{"text": "one", "id": 1, "id": 2}'):
        assert json_object(line, "a:1", ["text"])["text"] in ("one", "text")
