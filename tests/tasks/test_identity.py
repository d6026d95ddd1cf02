import hashlib
import os
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from tasks.contract import EXECUTION, Settings, Stage, UserError, UserPath
from tasks.identity import canonical, differences, fingerprint_of, identity_of
from tasks.user_files import user_files


class Inner(Settings):
    rate: float = 0.5
    log_every: Annotated[int, EXECUTION] = 10


class Outer(Settings):
    paths: list[UserPath] = Field(default_factory=list)
    one: UserPath | None = None
    inner: Inner = Inner()
    table: dict[str, Inner] = Field(default_factory=dict)


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def stage(version: int = 1) -> Stage:
    return Stage("corpus", version, Outer, lambda *_: {})


def test_users_files_count_by_content_and_ending_not_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("one")
    (tmp_path / "c.txt").write_text("two")

    def identity(name: str) -> dict[str, object]:
        return identity_of(Outer(paths=[str(tmp_path / name)], one=str(tmp_path / name)), digest)

    assert identity("a.txt") == identity("b.txt")
    assert identity("a.txt") != identity("c.txt")
    # By its ending the same content would be read as another format.
    for name in ("a.jsonl", "a.tar.gz", "b.x.JSONL.gz", "d.2024"):
        (tmp_path / name).write_text("one")
    sha256 = hashlib.sha256(b"one").hexdigest()
    assert identity("a.txt")["one"] == [f"{sha256}.txt"]
    assert identity("a.jsonl")["one"] == [f"{sha256}.jsonl"]
    assert identity("b.x.JSONL.gz")["one"] == [f"{sha256}.jsonl.gz"]
    assert identity("d.2024")["paths"] == [f"{sha256}.2024"]


def test_a_glob_is_sorted_and_has_files_only(tmp_path: Path) -> None:
    for name in ("2.txt", "1.txt", "deep/3.txt", "deep/folder.txt/4.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "deep/back").symlink_to("..")
    assert [file.name for file in user_files(str(tmp_path / "*.txt"))] == ["1.txt", "2.txt"]
    assert [file.name for file in user_files(str(tmp_path / "**/[0-9].txt"))] == ["1.txt", "2.txt", "3.txt", "4.txt"]


def test_brackets_of_a_name_that_exists_are_no_glob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "set[1]*"
    folder.mkdir()
    for name in ("a[1].txt", "a1.txt"):
        (folder / name).write_text("x")
    assert user_files(str(folder / "a[1].txt")) == [folder / "a[1].txt"]
    assert user_files(str(folder / "a[12].txt")) == [folder / "a1.txt"]
    assert user_files(str(folder / "*.txt")) == [folder / "a1.txt", folder / "a[1].txt"]
    monkeypatch.chdir(folder)
    assert user_files("*1.txt") == [Path("a1.txt")]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("qqqqqq*", "no file matches; nothing in"),
        ("none.txt", "no such file; did you mean"),
        ("fifo", "is not a regular file but a pipe, socket or device"),
        ("fif?", "is not a regular file but a pipe, socket or device"),
        ("loop", "cannot be read: Too many levels of symbolic links"),
        ("gone", "is a link to a file that does not exist"),
        ("gon*", "is a link to a file that does not exist"),
        ("folder", "is a folder; name its files"),
        ("folder/*", "no file matches"),
        ("x" * 300, "cannot be read: File name too long"),
        ("x" * 300 + "*", "no file matches"),
        ("one.txt/two", "no such file"),
        ("a\0b", "a path holds no NUL character"),
        ("a\0b*", "no file matches"),
        ("two\nlines", r"two\nlines': no such file"),
    ],
)
def test_what_is_not_a_file_is_said_in_one_line(tmp_path: Path, name: str, says: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "one.txt").write_text("x")
    with pytest.raises(UserError) as caught:
        user_files(str(tmp_path / name), "corpus.paths")
    message = str(caught.value)
    assert message.startswith("corpus.paths: ")
    assert says in message
    assert message.isprintable()
    assert f"did you mean {tmp_path / name}?" not in message


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("x")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(UserError, match=r"a\.txt: cannot be read: Permission denied"):
        user_files(str(tmp_path / "a.txt"))


def test_the_home_of_a_user_who_is_not_there() -> None:
    with pytest.raises(ValidationError, match="there is no user '~nobody-of-that-name'; write the path out"):
        Outer(one="~nobody-of-that-name/a.txt")


def test_execution_settings_are_left_out_also_in_nested_models() -> None:
    a = Outer(inner=Inner(log_every=1), table={"x": Inner(log_every=2)})
    b = Outer(inner=Inner(log_every=3), table={"x": Inner(log_every=4)})
    assert identity_of(a, digest) == identity_of(b, digest)
    assert identity_of(a, digest) != identity_of(Outer(inner=Inner(rate=0.25), table={"x": Inner()}), digest)


def test_fingerprint_covers_name_version_identity_and_input_digests() -> None:
    base = fingerprint_of(stage(), {"a": 1}, {"corpus": "d1"})
    assert base == fingerprint_of(stage(), {"a": 1.0}, {"corpus": "d1"})
    others = {
        fingerprint_of(stage(2), {"a": 1}, {"corpus": "d1"}),
        fingerprint_of(stage(), {"a": 2}, {"corpus": "d1"}),
        fingerprint_of(stage(), {"a": 1}, {"corpus": "d2"}),
        fingerprint_of(Stage("pack", 1, Outer, lambda *_: {}), {"a": 1}, {"corpus": "d1"}),
    }
    assert len(others | {base}) == 5


def test_fingerprint_is_the_same_on_every_machine() -> None:
    # A pinned value: a change here invalidates every store that users have.
    assert fingerprint_of(stage(), {"b": ["ক", 0.5], "a": None}, {}).startswith("5cb6d47c136d")


@pytest.mark.parametrize("value", [{1, 2}, object(), {1: "x"}, Path("x"), b"x", print])
def test_canonical_refuses_what_has_no_stable_encoding(value: object) -> None:
    with pytest.raises(TypeError):
        canonical(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_canonical_refuses_numbers_that_json_lacks(value: float) -> None:
    with pytest.raises(ValueError, match="canonical"):
        canonical([value])


def test_differences_name_place_old_and_new() -> None:
    old = {"a": {"b": 1, "c": [1, 2]}, "d": "x"}
    new = {"a": {"b": 2, "c": [1, 3]}, "e": "y"}
    assert differences(old, new) == [
        ("a.b", 1, 2),
        ("a.c.1", 2, 3),
        ("d", "x", None),
        ("e", None, "y"),
    ]
    assert differences(old, old) == []
