import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.contract import StageError, UserError

sys.path.insert(0, str(Path(__file__).parent))
from stub_chain import Chain

SLOW_RUN = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from stub_chain import Chain
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


def test_store_that_cannot_be_made_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        Chain(tmp_path).run()
    assert os.listdir(tmp_path) == ["store"]
