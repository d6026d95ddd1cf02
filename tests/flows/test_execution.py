import errno
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.contract import StageError, UserError

sys.path.insert(0, str(Path(__file__).parent))
from stub_chain import Chain, StubSettings

SLOW_RUN = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from stub_chain import Chain, StubSettings
from flows.terminal import show_logs
from rich.console import Console
show_logs(Console(file=sys.stderr))
chain = Chain(Path(sys.argv[2]))
inner = chain._run
def slow(name):
    run = inner(name)
    def slowly(settings, inputs, folder, progress):
        if name == "pack":
            print("in pack", flush=True)
            time.sleep(float(sys.argv[3]))
        return run(settings, inputs, folder, progress)
    return slowly
chain._run = slow
chain.run()
print(",".join(chain.ran), flush=True)
"""


def start(root: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", SLOW_RUN, str(Path(__file__).parent), str(root), str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_runs_at_once_one_works_the_other_waits_and_reuses(tmp_path: Path) -> None:
    Chain(tmp_path).run(until="tokenizer")
    first = start(tmp_path, 4)
    assert first.stdout is not None
    assert first.stdout.readline() == "in pack\n"
    second = start(tmp_path, 4)
    out, log = second.communicate(timeout=60)
    first_out, _ = first.communicate(timeout=60)
    assert "in pack" not in out
    assert f"pack: waiting for process {first.pid}" in log
    assert sorted((first_out + out).replace("\n", ",").split(",")).count("pack") == 1


def test_the_other_takes_over_within_5_seconds_when_the_holder_is_killed(tmp_path: Path) -> None:
    Chain(tmp_path).run(until="tokenizer")
    first = start(tmp_path, 60)
    assert first.stdout is not None
    assert first.stdout.readline() == "in pack\n"
    second = start(tmp_path, 0)
    assert second.stderr is not None
    assert "waiting" in second.stderr.readline()
    first.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    assert second.stdout is not None
    assert second.stdout.readline() == "in pack\n"
    assert time.monotonic() - killed < 5
    second.communicate(timeout=60)
    first.communicate(timeout=60)
    assert second.returncode == 0
    assert first.returncode == -signal.SIGKILL


def failing(chain: Chain, name: str, error: Exception) -> None:
    make = chain._run

    def run(stage: str):  # type: ignore[no-untyped-def]
        def fail(settings: object, inputs: object, folder: Path, progress: object) -> dict[str, object]:
            (folder / "half").write_text("half")
            raise error

        return fail if stage == name else make(stage)

    chain._run = run  # type: ignore[method-assign]


def test_wrong_input_leaves_nothing_half_written(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    failing(chain, "corpus", UserError("corpus.txt:3: not UTF-8"))
    with pytest.raises(UserError, match=r"corpus\.txt:3"):
        chain.run()
    assert not list((chain.store.root / "work").glob("*/*"))
    assert not list((chain.store.root / "artifacts").glob("*/*"))


def test_failed_stage_keeps_its_work_for_the_next_run(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    failing(chain, "pack", StageError("loss is NaN at step 7"))
    with pytest.raises(StageError, match="NaN"):
        chain.run()
    (work,) = (chain.store.root / "work").glob("*/*")
    assert (work / "half").exists()
    again = Chain(tmp_path)
    assert again.plan()[2].reason == "unfinished: goes on where it stopped"
    again.run()
    assert again.ran == ["pack", "evaluate", "report"]
    assert not work.exists()


def of_torch() -> Exception:
    """What torch raises as it closes a file that it could not write."""
    error = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")
    error.__context__ = OSError(errno.ENOSPC, "No space left on device")
    return error


@pytest.mark.parametrize(
    "error",
    [
        of_torch(),
        OSError(errno.ENOSPC, "Error writing bytes to file"),
        sqlite3.OperationalError("database or disk is full"),
        Exception("No space left on device (os error 28)"),
    ],
)
def test_full_disk_is_one_line_and_the_run_goes_on_later(tmp_path: Path, error: Exception) -> None:
    chain = Chain(tmp_path)
    failing(chain, "pack", error)
    with pytest.raises(StageError, match=r"^pack: a disk is full \(.*\); free space for .*, and run again to go on$"):
        chain.run()
    again = Chain(tmp_path)
    again.run()
    assert again.ran == ["pack", "evaluate", "report"]


def test_store_that_cannot_be_made_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        Chain(tmp_path).run()
    assert os.listdir(tmp_path) == ["store"]


def flip(path: Path) -> None:
    """Another content of the same size."""
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def test_verify_rebuilds_what_its_size_does_not_betray(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    path = chain.run()["pack"].path
    flip(path / "out.json")
    assert set(chain.actions().values()) == {"reuse"}
    chain.run(verify=True)
    assert chain.ran == ["pack"]
    assert set(chain.actions().values()) == {"reuse"}


def test_force_repairs_a_damaged_artifact_even_with_equal_bytes(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    path = chain.run()["pack"].path
    before = (path / "out.json").read_bytes()
    flip(path / "out.json")
    chain.run(force=("pack",))
    assert (path / "out.json").read_bytes() == before


def test_wrong_input_found_on_going_on_keeps_what_was_done(tmp_path: Path) -> None:
    chain = Chain(tmp_path)

    def interrupted(folder: Path) -> None:
        (folder / "scratch").mkdir()
        (folder / "scratch" / "checkpoint").write_text("days of work")
        raise KeyboardInterrupt

    def no_gpu(folder: Path) -> None:
        raise UserError("no GPU")

    chain.meanwhile["pack"] = interrupted
    with pytest.raises(KeyboardInterrupt):
        chain.run()
    chain.meanwhile["pack"] = no_gpu
    with pytest.raises(UserError):
        chain.run()
    (checkpoint,) = chain.store.root.glob("work/pack/*/scratch/checkpoint")
    assert checkpoint.read_text() == "days of work"


def test_file_that_changes_during_the_run_is_not_stored_as_its_old_content(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("one")
    chain.settings["corpus"] = StubSettings(paths=[str(text)])
    chain.meanwhile["corpus"] = lambda folder: text.write_text("two!")
    with pytest.raises(StageError, match="a file that it reads was changed during the run"):
        chain.run()
    assert not list((chain.store.root / "artifacts").glob("*/*"))


def test_input_that_is_replaced_during_the_run_is_noticed(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    chain.run(until="pack")
    other = Chain(tmp_path)
    other.noise["pack"] = "another"
    chain.meanwhile["evaluate"] = lambda folder: other.run(until="pack", force=("pack",))
    with pytest.raises(StageError, match="its input pack was replaced during the run"):
        chain.run()
    assert not list((chain.store.root / "artifacts").glob("evaluate/*"))


def test_interrupted_forced_run_goes_on_and_a_new_one_begins_anew(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    chain.run()
    seen = []

    def interrupted(folder: Path) -> None:
        seen.append((folder / "scratch" / "part").exists())
        (folder / "scratch" / "part").write_text("done")
        raise KeyboardInterrupt

    chain.meanwhile["pack"] = interrupted
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            chain.run(force=("pack",))
    chain.meanwhile.clear()
    chain.run(force=("pack",))
    chain.meanwhile["pack"] = interrupted
    with pytest.raises(KeyboardInterrupt):
        chain.run(force=("pack",))
    assert seen == [False, True, False]


def test_what_is_foreign_in_a_work_folder_is_not_published(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    work = chain.store.work("corpus", chain.plan()[0].fingerprint or "")
    chain.store.create()
    work.mkdir(parents=True)
    (work / "junk.txt").write_text("junk")
    (work / "link").symlink_to("/etc/passwd")
    (work / "record.json").mkdir()
    (work / "scratch").write_text("a file")
    outcome = chain.run(until="corpus")["corpus"]
    assert set(outcome.record.outputs) == {"out.json"}


def test_stage_that_fails_over_a_damaged_input_names_it(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    flip(chain.run(until="pack")["pack"].path / "out.json")

    def stumble(folder: Path) -> None:
        raise ValueError("cannot parse")

    chain.meanwhile["evaluate"] = stumble
    with pytest.raises(StageError, match=r"the result of pack is damaged: out\.json has another content.*--verify"):
        chain.run()


def test_stage_that_shows_records_runs_again_when_one_is_of_other_settings(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    chain.run()
    text = tmp_path / "text.txt"
    text.write_text("ignored")
    # Another identity of evaluate with equal bytes: only its record differs, and only the report shows records.
    chain.settings["evaluate"] = StubSettings(unused="other")
    chain.run()
    assert chain.ran == ["evaluate", "report"]
