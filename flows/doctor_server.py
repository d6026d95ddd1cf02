"""What `sahajflow doctor` finds out about the Prefect server: whether it answers, its version, clock and pools."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from flows import local_server
from flows.reconcile import OURS
from tasks.checks import Check
from tasks.contract import UserError
from tasks.foreign_text import first_line, printable

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

CLOCK_SECONDS = 60.0
"""How far two clocks may be apart: schedules and heartbeats count in minutes."""


def server_checks() -> list[Check]:
    """Checks of the configured Prefect server, else of the local one; starts none."""
    try:
        configured = local_server.configured_url()
    except UserError as error:
        return [Check("server", "fail", str(error), "mend the file, or unset what names it")]
    url = configured[0] if configured else local_server.server().state().get("url")
    if url is None:
        return [Check("server", "ok", "none runs; `sahajflow run` and `sahajflow up` start a local one")]
    if not local_server.answers(url):
        if configured is None:
            return [
                Check("server", "warn", f"the local one ({url}) does not answer", "sahajflow up; or run starts it")
            ]
        remedy = "start it, or remove the setting to use a local server"
        return [Check("server", "fail", f"{url} (set in {configured[1]}) does not answer", remedy)]
    local_server.use(url)
    from prefect.client.orchestration import get_client

    whose = f"set in {configured[1]}" if configured else "the local one"
    try:
        with get_client(sync_client=True) as client:
            found = [Check("server", "ok", f"{url} answers ({whose})"), _versions(client, local=configured is None)]
            return [*found, *([_clock(url)] if configured else []), *_pools(client)]
    except Exception as error:  # whatever the server or the way to it says
        remedy = "see its log and, where it asks for one, set PREFECT_API_KEY or PREFECT_API_AUTH_STRING"
        return [Check("server", "fail", f"{url} ({whose}): {printable(first_line(error))}", remedy)]


def _versions(client: SyncPrefectClient, *, local: bool) -> Check:
    """A server must not be older than its clients, by Prefect's own rule, nor of another major version."""
    theirs, ours = client.api_version(), version("prefect")
    told = f"Prefect {theirs} there, {ours} here"
    if _numbers(theirs) >= _numbers(ours) and _numbers(theirs)[:1] == _numbers(ours)[:1]:
        return Check("versions", "ok", told)
    restart = "sahajflow down, then sahajflow up: it was started before the upgrade"
    return Check("versions", "fail", told, restart if local else f"install prefect=={ours} there, or {theirs} here")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("+")[0].split(".") if part.isdigit())


def _clock(url: str) -> Check:
    """By the Date of its answer (RFC 9110, in whole seconds)."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=local_server.HEALTH_SECONDS) as response:
            date = response.headers.get("Date")
    except urllib.error.HTTPError as error:
        date = error.headers.get("Date")
    apart = time.time() - parsedate_to_datetime(date).timestamp() if date else 0.0
    told = (
        f"{abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} the server's" if date else "the server tells none"
    )
    return Check(
        "server clock", "ok" if abs(apart) <= CLOCK_SECONDS else "warn", told, "timedatectl set-ntp true, on both"
    )


def _pools(client: SyncPrefectClient) -> list[Check]:
    """A pool that our deployments use and nobody serves: what is due there waits for ever."""
    due: dict[str, list[str]] = {}
    for deployment in client.read_deployments(limit=200):
        if OURS in deployment.tags and deployment.work_pool_name:
            schedules = [one.slug or "a schedule" for one in deployment.schedules if one.active]
            due.setdefault(deployment.work_pool_name, []).extend(schedules if not deployment.paused else [])
    if not due:
        return [Check("pools", "ok", "nothing is deployed; `sahajflow up` does it")]
    return [_pool(client, name, schedules) for name, schedules in sorted(due.items())]


def _pool(client: SyncPrefectClient, name: str, schedules: Sequence[str]) -> Check:
    workers = client.read_workers_for_work_pool(name)
    online = [worker.name for worker in workers if _online(worker)]
    where = f"pool {name}"
    if client.read_work_pool(name).is_paused:
        return Check(where, "warn", "is paused: nothing of it begins", f"prefect work-pool resume {name}")
    if online:
        return Check(where, "ok", f"{len(online)} worker{'s' * (len(online) != 1)}: {', '.join(online)}")
    remedy = f"sahajflow up --pool {name}, on a machine that is to run them"
    if schedules:
        return Check(where, "warn", f"no worker, and {', '.join(schedules)} is due in it", remedy)
    return Check(where, "ok", f"no worker, and no schedule in it; {remedy}")


def _online(worker: Any) -> bool:
    return str(getattr(worker.status, "value", worker.status)).upper() == "ONLINE"
