from pathlib import Path

import pytest

from tasks.contract import UserError
from tasks.pretraining.gaudi.hostfile import slots


def test_hosts_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("10.0.0.8 slots=8\n\nnode-1   slots=4\n")
    assert list(slots(tmp_path / "hosts").items()) == [("10.0.0.8", 8), ("node-1", 4)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a slots=8\nb slots=eight\n", "line 2: 'b slots=eight' is not NAME slots=N"),
        ("a 8\n", "line 1: 'a 8' is not NAME slots=N"),
        ("a slots=0\n", "line 1: 'a slots=0' is not NAME slots=N"),
        ("a slots=8\na slots=8\n", "line 2: host a is named twice"),
        ("\n", "names no host"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(UserError, match="hosts") as error:
        slots(tmp_path / "hosts")
    assert told in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"hosts: cannot be read \(No such file"):
        slots(tmp_path / "hosts")
    (tmp_path / "hosts").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="is not text"):
        slots(tmp_path / "hosts")
