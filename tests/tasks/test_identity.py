import hashlib
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from tasks.contract import EXECUTION, Settings, Stage, UserError, UserPath
from tasks.identity import canonical, differences, fingerprint_of, identity_of, user_files


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


def test_users_files_count_by_content_not_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("one")
    (tmp_path / "c.txt").write_text("two")

    def identity(name: str) -> dict[str, object]:
        return identity_of(Outer(paths=[str(tmp_path / name)], one=str(tmp_path / name)), digest)

    assert identity("a.txt") == identity("b.txt")
    assert identity("a.txt") != identity("c.txt")
    assert "txt" not in str(identity("a.txt"))


def test_glob_is_sorted_and_a_folder_means_all_its_files(tmp_path: Path) -> None:
    for name in ("2.txt", "1.txt", "deep/3.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [file.name for file in user_files(str(tmp_path / "*.txt"))] == ["1.txt", "2.txt"]
    assert [file.name for file in user_files(str(tmp_path))] == ["1.txt", "2.txt", "3.txt"]
    with pytest.raises(UserError, match=r"none\*: no such file"):
        user_files(str(tmp_path / "none*"))


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
