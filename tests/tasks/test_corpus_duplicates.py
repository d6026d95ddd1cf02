"""The memory of what the corpus has seen, and the findings that survive a kill."""

import signal
import subprocess
import sys

import numpy as np
import pytest

from tasks.corpus_duplicates import Duplicates, Findings


def signature(*numbers):
    return np.array(numbers, dtype=np.uint32).tobytes()


@pytest.fixture
def seen(tmp_path):
    duplicates = Duplicates(tmp_path / "seen", near_similarity=0.75)
    yield duplicates
    duplicates.close()
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_equal_ones_is_named(seen):
    assert seen.exact(b"1", "a") is None
    assert seen.exact(b"2", "b") is None
    assert seen.exact(b"1", "c") == "a"
    assert seen.exact(b"1", "d") == "a"


def test_near_ones_share_a_band_and_enough_of_the_signature(seen):
    assert seen.near(signature(1, 2, 3, 4), (10, -20), "a") is None
    assert seen.near(signature(1, 2, 3, 5), (30, 40), "no band") is None
    assert seen.near(signature(1, 2, 8, 9), (10, 50), "too different") is None
    assert seen.near(signature(1, 2, 3, 9), (-20, 60), "near") == ("a", 0.75)
    # What was dropped is not remembered.
    assert seen.near(signature(1, 2, 3, 9), (60, 70), "by its band alone") is None


def test_the_most_similar_is_named_and_of_equal_ones_the_first(seen):
    seen.near(signature(1, 2, 3, 4), (1,), "a")
    seen.near(signature(1, 2, 8, 8), (2,), "b")
    seen.near(signature(1, 2, 8, 8), (3,), "c")
    assert seen.near(signature(1, 2, 8, 8), (1, 2, 3), "d") == ("b", 1.0)


def test_a_file_that_was_left_is_no_memory(tmp_path):
    (tmp_path / "seen").write_text("half a database")
    duplicates = Duplicates(tmp_path / "seen")
    assert duplicates.exact(b"1", "a") is None
    duplicates.close()


def test_findings_survive_a_kill(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tasks.corpus_duplicates import Findings\n"
        "findings = Findings(Path(sys.argv[1]))\n"
        "for number in range(50):\n"
        "    findings.keep(b'%d' % number, b'x' * 10_000)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "found"], check=False)
    assert done.returncode == -signal.SIGKILL
    findings = Findings(tmp_path / "found")
    assert [findings.get(b"%d" % number) for number in (0, 49)] == [b"x" * 10_000] * 2
    assert findings.get(b"50") is None
    findings.close()


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5_000])
def test_damaged_findings_are_made_anew(tmp_path, content):
    (tmp_path / "found").write_bytes(content)
    findings = Findings(tmp_path / "found")
    findings.keep(b"1", b"2")
    assert findings.get(b"1") == b"2"
    findings.close()
