"""Progress through a file: the newest is told, once."""

from tasks.status_file import status_writer, tell_status


def test_what_is_written_is_told_once_and_the_last_step_always(tmp_path):
    path, told = tmp_path / "status.json", []

    def progress(done, total, *, unit="", note="", rows=()):
        told.append((done, total, unit, note, rows))

    assert tell_status(path, {}, progress) == {}
    write = status_writer(path)
    write(1, 9, unit="steps", note="loss 5", rows=[{"a": "b"}])
    write(2, 9, unit="steps")  # too soon after the first
    known = tell_status(path, {}, progress)
    assert tell_status(path, known, progress) == known
    write(9, 9, unit="steps")
    tell_status(path, known, progress)
    assert told == [(1, 9, "steps", "loss 5", [{"a": "b"}]), (9, 9, "steps", "", [])]
    assert [file.name for file in tmp_path.iterdir()] == ["status.json"]
