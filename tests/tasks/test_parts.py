from pathlib import Path

from tasks.parts import Parts


def build(folder: Path, name: str, text: str = "x") -> Path:
    source = folder / "scratch" / name
    source.write_text(text)
    return source


def test_finished_part_survives_a_restart_with_its_facts(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.finish("shard-0", build(tmp_path, "new"), tmp_path / "data" / "0.arrow", documents=3)
    again = Parts(tmp_path)
    assert again.finished() == {"shard-0": {"documents": 3}}
    assert again.path("shard-0").read_text() == "x"


def test_part_of_another_size_or_without_file_is_removed(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    for name in ("a", "b", "c"):
        parts.finish(name, build(tmp_path, name), tmp_path / "data" / name)
    (tmp_path / "data" / "a").write_text("longer")
    (tmp_path / "data" / "b").unlink()
    assert list(Parts(tmp_path).finished()) == ["c"]
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["c"]


def test_folders_are_parts_too_and_are_replaced_as_a_whole(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    target = tmp_path / "scratch" / "checkpoints" / "step-5"
    for content in ("old", "new"):
        source = tmp_path / "scratch" / "building"
        source.mkdir()
        (source / f"{content}.pt").write_text(content)
        parts.finish("step-5", source, target, step=5)
    assert [path.name for path in target.iterdir()] == ["new.pt"]
    assert parts.finished() == {"step-5": {"step": 5}}
    parts.remove("step-5")
    assert not target.exists()
    assert parts.finished() == {}
