"""What the doctor says of a Prefect server: of a real one, of one that is gone, and of answers that are made up."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from flows import doctor_server
from flows.doctor_server import server_checks

if TYPE_CHECKING:
    from tests.flows.conftest import Server

OURS = metadata.version("prefect")


def test_a_running_server_is_asked(server: "Server") -> None:
    first, versions, *pools = server_checks()
    assert (first.state, first.finding) == ("ok", f"{server.url} answers (the local one)")
    assert (versions.state, versions.finding) == ("ok", f"Prefect {OURS} there, {OURS} here")
    assert pools
    assert {check.name.partition(" ")[0] for check in pools} <= {"pool", "pools"}


def test_a_configured_server_that_is_gone_fails(no_prefect_configured: None) -> None:
    os.environ["PREFECT_API_URL"] = "http://127.0.0.1:1/api"
    (check,) = server_checks()
    assert check.state == "fail"
    assert check.finding == "http://127.0.0.1:1/api (set in PREFECT_API_URL) does not answer"
    assert "remove the setting" in check.remedy


@pytest.mark.parametrize(
    ("theirs", "state"),
    [(OURS, "ok"), ("3.999.0", "ok"), ("3.0.1", "fail"), ("2.20.0", "fail"), ("4.0.0", "fail")],
)
def test_a_server_is_not_older_than_its_clients(theirs: str, state: str) -> None:
    client: Any = SimpleNamespace(api_version=lambda: theirs)
    for local, remedy in ((True, "sahajflow down, then sahajflow up"), (False, f"install prefect=={OURS} there")):
        check = doctor_server._versions(client, local=local)
        assert (check.state, check.finding) == (state, f"Prefect {theirs} there, {OURS} here")
        assert state == "ok" or check.remedy.startswith(remedy)


@contextmanager
def dated(date: datetime) -> Iterator[str]:
    """A server whose answers bear this date."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *said: object) -> None:
            pass

        def date_time_string(self, timestamp: float | None = None) -> str:
            return format_datetime(date, usegmt=True)

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def test_clocks_are_compared() -> None:
    now = datetime.now(UTC)
    with dated(now) as url:
        assert doctor_server._clock(url).state == "ok"
    with dated(now + timedelta(hours=1)) as url:
        check = doctor_server._clock(url)
    assert check.state == "warn"
    assert check.finding.endswith(" s behind the server's")
    assert 3590 < int(check.finding.split()[0]) < 3610


def test_pools_without_a_worker_are_told_with_what_is_due_there() -> None:
    def deployment(pool: str, *slugs: str, active: bool = True) -> SimpleNamespace:
        schedules = [SimpleNamespace(slug=slug, active=active) for slug in slugs]
        return SimpleNamespace(tags=["sahajflow"], work_pool_name=pool, schedules=schedules, paused=False)

    deployed = [
        deployment("cpu", "nightly"),
        deployment("gpu", "weekly"),
        deployment("gaudi", "monthly", active=False),
        deployment("held", "daily"),
    ]
    deployed.append(SimpleNamespace(tags=[], work_pool_name="others", schedules=[], paused=False))
    workers = {"cpu": [("here", "ONLINE"), ("gone", "OFFLINE")], "gpu": [("gone", "OFFLINE")]}
    client: Any = SimpleNamespace(
        read_deployments=lambda limit: deployed,
        read_work_pool=lambda name: SimpleNamespace(is_paused=name == "held"),
        read_workers_for_work_pool=lambda name: [
            SimpleNamespace(name=worker, status=SimpleNamespace(value=state))
            for worker, state in workers.get(name, [])
        ],
    )
    found = {check.name: (check.state, check.finding) for check in doctor_server._pools(client)}
    remedy = "sahajflow up --pool {}, on a machine that is to run them"
    assert found == {
        "pool cpu": ("ok", "1 worker: here"),
        "pool gaudi": ("ok", f"no worker, and no schedule in it; {remedy.format('gaudi')}"),
        "pool gpu": ("warn", "no worker, and weekly is due in it"),
        "pool held": ("warn", "is paused: nothing of it begins"),
    }
    deployed.clear()
    assert [check.finding for check in doctor_server._pools(client)] == ["nothing is deployed; `sahajflow up` does it"]
