"""The log of each attempt at a stage, and how an attempt is told to have ended."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest

from flows.attempts import attempts, logged, without_secrets
from flows.command_line import main
from tasks import locks
from tasks.contract import StageError, UserError
from tasks.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_log_tells_what_the_stage_said_and_how_it_ended(store: Store) -> None:
    log = logging.getLogger("tasks.corpus")
    with logged(store, "corpus", "a" * 64, "corpus"):
        log.info("read %d documents", 7)
    with pytest.raises(StageError), logged(store, "pack", "b" * 64, "pack"):
        raise StageError("no block is full; lower sequence_length")
    with pytest.raises(ZeroDivisionError), logged(store, "pack", "b" * 64, "pack"):
        _ = 1 / 0
    with pytest.raises(UserError), logged(store, "corpus", "c" * 64, "corpus"):
        raise UserError("my.txt: is missing")
    with pytest.raises(KeyboardInterrupt), logged(store, "corpus", "d" * 64, "corpus"):
        raise KeyboardInterrupt
    log.info("after the end")
    found = attempts(store)
    assert [(one.stage, one.fingerprint[0], one.state, one.reason) for one in found] == [
        ("corpus", "d", "interrupted", ""),
        ("corpus", "c", "refused", "my.txt: is missing"),
        ("pack", "b", "failed", "ZeroDivisionError: division by zero"),
        ("pack", "b", "failed", "no block is full; lower sequence_length"),
        ("corpus", "a", "published", ""),
    ]
    assert [one.stage for one in attempts(store, "pack")] == ["pack", "pack"]
    text = found[-1].path.read_text(encoding="utf-8")
    assert f"start corpus by process {os.getpid()}" in text.splitlines()[0]
    assert "INFO tasks.corpus: read 7 documents" in text
    assert "after the end" not in text
    assert "Traceback" in found[2].path.read_text(encoding="utf-8")


def test_an_attempt_without_an_end_runs_if_its_process_holds_the_lock_and_was_killed_else(store: Store) -> None:
    folder = store.root / "logs" / "corpus" / ("a" * 16)
    folder.mkdir(parents=True)
    (folder / f"20260101T000000.000000Z-{os.getpid()}.log").write_text("2026-01-01T00:00:00Z start corpus\n")
    assert attempts(store)[0].state == "killed"
    with locks.held(store.lock("corpus", "a" * 16)):
        assert attempts(store)[0].state == "running"


def test_the_command_says_where_a_killed_attempt_ends_and_which_stages_have_logs(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.create()
    with logged(store, "corpus", "a" * 64, "corpus"):
        pass
    assert main(["logs", "--store", str(store.root)]) == 0
    assert capsys.readouterr().out.endswith("end published\n")
    folder = store.root / "logs" / "pack" / ("b" * 16)
    folder.mkdir(parents=True)
    (folder / f"99990101T000000.000000Z-{os.getpid()}.log").write_text("9999-01-01T00:00:00Z start pack\n")
    assert main(["logs", "--failed", "--store", str(store.root)]) == 0
    assert "start pack\n(ends here: the process was killed" in capsys.readouterr().out
    assert main(["logs", "seedrun", "--store", str(store.root)]) == 2
    assert "no attempt at seedrun has a log; there are logs of corpus, pack\n" in capsys.readouterr().err
    assert main(["logs", "corpus", "--failed", "--store", str(store.root)]) == 0
    assert capsys.readouterr().out == "no attempt at corpus has failed\n"


def test_a_failure_that_was_mended_since_is_said_to_be(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.create()
    with pytest.raises(StageError), logged(store, "pack", "a" * 64, "pack"):
        raise StageError("no block is full; lower sequence_length")
    assert main(["logs", "--failed", "--store", str(store.root)]) == 0
    assert capsys.readouterr().out.endswith("lower sequence_length\n")
    with logged(store, "pack", "b" * 64, "pack"):
        pass
    with logged(store, "pack", "a" * 64, "pack"):
        pass
    newest = attempts(store)[0].path
    assert main(["logs", "--failed", "--store", str(store.root)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-2].endswith("lower sequence_length")
    assert told[-1].startswith("(the same was tried again since: the attempt that began 20")
    assert told[-1].endswith(f" is published, {newest})")


def test_two_attempts_at_once_do_not_mix(store: Store) -> None:
    together = threading.Barrier(2, timeout=10)

    def attempt(name: str) -> None:
        with logged(store, "seed-run", name * 16, name):
            together.wait()
            logging.getLogger("eval").info("said by %s", name)
            together.wait()

    before = logging.getLogger("eval").level
    threads = [threading.Thread(target=attempt, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    for one in attempts(store):
        text = one.path.read_text(encoding="utf-8")
        assert [name for name in "ab" if f"said by {name}" in text] == [one.fingerprint[0]]
    assert logging.getLogger("eval").level == before


def test_a_failure_with_an_endless_message_is_no_kill(store: Store) -> None:
    with pytest.raises(RuntimeError), logged(store, "corpus", "a" * 64, "corpus"):
        raise RuntimeError("ক" * 10_000)
    (one,) = attempts(store)
    assert one.state == "failed"
    assert one.reason.startswith("RuntimeError: ককক")
    assert "ক" * 10_000 in one.path.read_text(encoding="utf-8")  # in the traceback


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("AWS_SECRET_ACCESS_KEY", True),
        ("AZURE_STORAGE_ACCOUNT_KEY", True),
        ("AZURE_STORAGE_CONNECTION_STRING", True),
        ("PREFECT_API_DATABASE_CONNECTION_URL", True),
        ("SSH_PASSPHRASE", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("SAHAJFLOW_HOME", False),
    ],
)
def test_what_is_named_like_a_secret(name: str, hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "planted-0123")
    assert without_secrets("with planted-0123") == (f"with [{name}]" if hidden else "with planted-0123")


@pytest.mark.parametrize(
    ("name", "value", "said", "shown"),
    [
        ("http_proxy", "http://me:planted-0123@proxy:3128", "no route by http://me:planted-0123@proxy:3128", "[{}]@"),
        ("HTTPS_PROXY", "me:pw@proxy:3128", "no route by http://me:pw@proxy:3128", "[{}]@"),
        ("ALL_PROXY", "socks5://me:planted%400123@proxy", "refused: user me, password planted@0123", "password [{}]"),
        ("PIP_INDEX_URL", "https://me:planted-0123@host/simple", "planted-0123 is wrong", "[{}] is wrong"),
    ],
)
def test_a_password_in_an_address_is_hidden(
    name: str, value: str, said: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    told = without_secrets(said)
    assert shown.format(name) in told
    assert not any(secret in told for secret in ("planted", ":pw"))


def test_addresses_without_a_password_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, value in enumerate(("http://proxy:3128", "me@example.com", "http://[::1@x", "git@host:path")):
        monkeypatch.setenv(f"PLACE_{number}", value)
        assert without_secrets(f"by {value}") == f"by {value}"


def test_a_secret_that_begins_another_leaves_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "planted")
    monkeypatch.setenv("B_TOKEN", "planted-and-more")
    assert without_secrets("with planted-and-more") == "with [B_TOKEN]"


def test_no_secret_of_the_environment_is_logged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted0123")

    def ask() -> None:
        logging.getLogger("tasks").warning("asked with hf_planted0123")
        raise StageError("hf_planted0123 was refused")

    with pytest.raises(StageError) as raised, logged(store, "corpus", "a" * 64, "corpus"):
        ask()
    assert str(raised.value) == "[HF_TOKEN] was refused", "this goes to Prefect, and into results"
    text = attempts(store)[0].path.read_text(encoding="utf-8")
    assert "hf_planted" not in text
    assert "asked with [HF_TOKEN]" in text
    assert attempts(store)[0].reason == "[HF_TOKEN] was refused"
    assert without_secrets("hf_planted0123") == "[HF_TOKEN]"


def test_a_log_that_cannot_be_written_ends_no_stage(store: Store) -> None:
    store.root.mkdir()
    (store.root / "logs").touch()  # a file where the folder should be
    done = []
    with logged(store, "corpus", "a" * 64, "corpus"):
        logging.getLogger("tasks").warning("nobody hears")
        done.append(True)
    assert done == [True]
