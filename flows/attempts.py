"""One log file for each attempt at a stage, readable without Prefect.

    <store>/logs/<stage>/<fingerprint, 16 digits>/<start>-<process>.log

It lies beside the work and not in it: it outlives an attempt that was refused, begun anew or published, and what is
published holds no host's name or path from it. The first line says who began what; the last one how it ended, and
where that is lacking the attempt was killed, or goes on.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from tasks import locks
from tasks.contract import StageError, UserError
from tasks.store import Store
from tasks.strict_yaml import cut

STAGE_LOGGERS = ("sahajflow", "tasks", "eval", "flows")
"""What stages and their surroundings log to."""

State = Literal["running", "published", "failed", "refused", "interrupted", "killed"]

_END = re.compile(r"\S+ end (published|failed|refused|interrupted)(?:: (.*))?")
_SECRET = re.compile(
    r"TOKEN(?!IZER)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|_KEY$|AUTH_STRING|CONNECTION_(STRING|URL)",
    re.IGNORECASE,
)
_NAME = "%Y%m%dT%H%M%S.%f"
_SHORTEST_SECRET = 6
_LONGEST_REASON = 1_000
_TAIL = 8_192
"""Bytes that are read from a log's end: more than a last line with the longest reason has."""

_running: set[int] = set()
"""Threads that attempt a stage right now."""
_levels: dict[str, int] = {}
"""Of the loggers, before the first of those began."""
_changing = threading.Lock()


@dataclass(frozen=True)
class Attempt:
    """One attempt as its log tells it."""

    stage: str
    fingerprint: str
    """16 digits."""
    started: datetime
    state: State
    reason: str
    """Why it failed, in one line; empty otherwise."""
    path: Path


def without_secrets(text: str) -> str:
    """The text with the value of every environment variable that is named like a secret replaced by its name, and so
    the passwords in the addresses that variables hold, such as a proxy's."""
    secrets = [(value, f"[{name}]") for name, value in os.environ.items() if _SECRET.search(name)]
    secrets = [one for one in secrets if len(one[0]) >= _SHORTEST_SECRET]
    secrets += [one for name, value in os.environ.items() for one in _in_address(name, value)]
    # The longest first: one secret may be the beginning of another.
    for secret, shown in sorted(secrets, key=lambda one: -len(one[0])):
        text = text.replace(secret, shown)
    return text


def _in_address(name: str, value: str) -> Iterator[tuple[str, str]]:
    """Of ``http://user:password@host``, also without the scheme: what is to be replaced, and by what."""
    if "@" not in value:
        return
    try:
        found = urlsplit(value if "://" in value else f"//{value}")
    except ValueError:
        return
    if found.password:
        yield f"{found.username}:{found.password}@", f"[{name}]@"
        for password in {found.password, unquote(found.password)}:
            if len(password) >= _SHORTEST_SECRET:
                yield password, f"[{name}]"


@contextmanager
def logged(store: Store, stage: str, fingerprint: str, title: str) -> Iterator[None]:
    """Write the log of one attempt while the body of the ``with`` makes it; what it raises is raised on, without the
    secrets in its message: that goes to Prefect, and of a failed seed run to results and report."""
    log = _open(store.root / "logs" / stage / fingerprint[:16])
    _begin(log)
    log.say(f"start {title} by process {os.getpid()} on {socket.gethostname()}")
    try:
        yield
    except UserError as error:
        _hide_secrets(error)
        log.say(f"end refused: {_one_line(error)}")
        raise
    except Exception as error:
        _hide_secrets(error)
        if not isinstance(error, StageError):
            log.say("".join(traceback.format_exception(error)).rstrip())
        log.say(f"end failed: {_one_line(error)}")
        raise
    except BaseException:
        log.say("end interrupted")
        raise
    else:
        log.say("end published")
    finally:
        _end(log)
        log.close()


def _begin(log: _Log) -> None:
    with _changing:
        for logger in map(logging.getLogger, STAGE_LOGGERS):
            logger.addHandler(log)
            if not _running:  # else the levels are those that the first attempt set
                _levels[logger.name] = logger.level
                logger.setLevel(logger.level or logging.INFO)
        _running.add(threading.get_ident())


def _end(log: _Log) -> None:
    with _changing:
        _running.discard(threading.get_ident())
        for logger in map(logging.getLogger, STAGE_LOGGERS):
            logger.removeHandler(log)
            if not _running:
                logger.setLevel(_levels[logger.name])


def _open(folder: Path) -> _Log:
    """The log of an attempt that begins now. Where none can be written, on a full disk, the stage goes on without."""
    now = datetime.now(UTC)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = [started for path in folder.glob("*.log") if (started := _started(path)) is not None]
        if before:  # their order is that of the attempts, although the clock may have been set back between them
            now = max(now, max(before) + timedelta(microseconds=1))
        return _Log(folder / f"{now:{_NAME}}Z-{os.getpid()}.log")
    except OSError:
        return _Log(Path(os.devnull))


def _hide_secrets(error: Exception) -> None:
    error.args = tuple(without_secrets(part) if isinstance(part, str) else part for part in error.args)


def _one_line(error: Exception) -> str:
    text = cut(without_secrets(str(error)), _LONGEST_REASON)  # in this order: a secret must not be cut in two
    return text if isinstance(error, UserError | StageError) else f"{type(error).__name__}: {text}"


class _Log(logging.FileHandler):
    """Writes what the attempt's own thread logs, and threads that belong to no other attempt."""

    def __init__(self, path: Path):
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self._thread = threading.get_ident()
        formatter = logging.Formatter("%(asctime)sZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        self.setFormatter(formatter)

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread == self._thread or record.thread not in _running

    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:
        """A log that cannot be written, on a full disk, ends no stage."""

    def say(self, text: str) -> None:
        """A line of the attempt itself."""
        assert self.stream is not None  # open until the attempt has ended
        try:
            self.stream.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {without_secrets(text)}\n")
            self.flush()
        except (OSError, ValueError):
            pass


def attempts(store: Store, stage: str | None = None) -> list[Attempt]:
    """All attempts that have a log, or those at one stage; the newest first."""
    found = [_read(store, path) for path in (store.root / "logs").glob(f"{stage or '*'}/*/*.log")]
    return sorted((one for one in found if one is not None), key=lambda one: one.path.name, reverse=True)


def _started(log: Path) -> datetime | None:
    """When an attempt began, by the name of its log; None for another file."""
    try:
        return datetime.strptime(log.name.partition("Z-")[0], _NAME).replace(tzinfo=UTC)
    except ValueError:
        return None


def _read(store: Store, path: Path) -> Attempt | None:
    stage, fingerprint = path.parts[-3:-1]
    try:
        started = _started(path)
        pid = int(path.stem.partition("Z-")[2])
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            last = file.read().decode("utf-8", "replace").rstrip().rpartition("\n")[2]
    except (OSError, ValueError):
        return None  # removed meanwhile, or none of ours
    if started is None:
        return None
    state: State
    if end := _END.fullmatch(last):
        state, reason = end.group(1), end.group(2) or ""  # type: ignore[assignment]
    else:
        holder = locks.holder_of(store.lock(stage, fingerprint))
        state, reason = ("running" if holder is not None and holder["pid"] == pid else "killed"), ""
    return Attempt(stage, fingerprint, started, state, reason, path)
