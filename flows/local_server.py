"""One Prefect server on this machine, found or started, for everybody who runs sahajflow here.

Prefect can start a throw-away server for every process, which takes 13 to 20 s each time and fails when several
start at once; its own ``server start --background`` loses the logs and dies with the caller's Ctrl-C. Here the first
run that needs a server starts one, under a lock, in a session of its own, with its database and log below
``$SAHAJFLOW_HOME/server``; later runs find it and ``sahajflow down`` stops it. Whoever has configured a server gets
that one, and an error if it does not answer: runs must not land silently on a server where nobody looks.
"""

from __future__ import annotations

import http.client
import logging
import os
import re
import socket
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flows.background import Background
from tasks.contract import StageError, UserError
from tasks.store import home

logger = logging.getLogger(__name__)

START_SECONDS = 90.0
"""How long a server may take until it answers: 20 s were measured on 2 cores with nothing else to do."""

HEALTH_SECONDS = 5.0
"""How long one question for the server's health may take."""

NO_TELEMETRY = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""Environment that keeps Prefect, server and client, and the hub's libraries from reporting their use to their
makers. Every command starts with it (:func:`flows.command_line.main`)."""

RETENTION = {
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(180 * 86_400),
}
"""The local server forgets flow runs, with their logs and tables, half a year after they ended; left alone, its
database grows without bound (Prefect issue 16054). Results are in the store, and not touched by this."""


def server() -> Background:
    """The background process that is this machine's server."""
    return Background("server", home() / "server")


def ensure() -> str:
    """The address of the server to use (``…/api``): the configured one, else the local one, started if need be.

    Raises:
        UserError: a server is configured but does not answer.
        StageError: the local server does not start.
    """
    configured = configured_url()
    if configured is None:
        return start()
    url, place = configured
    if not answers(url):
        raise UserError(
            f"the Prefect server {url} does not answer (set in {place}): start it, or remove the setting to use "
            "a local server"
        )
    return url


def start() -> str:
    """Find or start the local server; returns its address (``http://127.0.0.1:<port>/api``) once it answers."""
    background = server()
    with background.alone():
        if not background.running():
            logger.info(
                "starting the local Prefect server (about 20 s), which `sahajflow down` stops; its log: %s",
                background.log,
            )
            command, environment, own_url = to_start(background)
            background.start(command, environment, url=own_url)
        url: str = background.state()["url"]
        deadline = time.monotonic() + START_SECONDS
        while not healthy(url):
            if not background.running():
                raise StageError(f"the local Prefect server ended while it started: see {background.log}")
            if time.monotonic() > deadline:
                raise StageError(
                    f"the local Prefect server does not answer at {url}: see {background.log}, then "
                    "`sahajflow down` and run again"
                )
            time.sleep(0.25)
    return url


def to_start(background: Background) -> tuple[list[str], dict[str, str], str]:
    """Command and environment of a server that is not running, and the address that it will have."""
    port = str(_free_port(background.state().get("url")))
    command = [sys.executable, "-P", "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", port]
    # Nothing of the user's Prefect settings: the server has its own home and, below it, its own SQLite database.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    url = f"http://127.0.0.1:{port}/api"
    # Its page asks there; left alone, it asks at Prefect's usual port, whoever serves that.
    own = {"PREFECT_HOME": str(background.folder), "PREFECT_SERVER_UI_API_URL": url}
    return command, inherited | NO_TELEMETRY | RETENTION | own, url


def stop() -> bool:
    """Stop the local server; false if none was running."""
    background = server()
    with background.alone():
        return background.stop()


def client_environment(url: str) -> dict[str, str]:
    """What makes a process that starts with it talk to this server and to nobody else."""
    without_proxy = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"]))
    return NO_TELEMETRY | {"PREFECT_API_URL": url, "NO_PROXY": without_proxy, "no_proxy": without_proxy}


def use(url: str) -> None:
    """Make Prefect's client in this process and its children talk to this server and to nobody else."""
    os.environ.update(client_environment(url))

    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()  # Prefect read the environment when it was imported, perhaps long ago


def healthy(url: str) -> bool:
    """Whether a Prefect server at this address says that it is well."""
    return _status(url) == 200


def answers(url: str) -> bool:
    """Whether any server answers at this address, be it only with "who are you?"."""
    return _status(url) is not None


def configured_url() -> tuple[str, str] | None:
    """The server that the user has configured for Prefect and the place where it is set; None if none is.

    The places are Prefect's own, in its order: environment, ``.env``, ``prefect.toml`` and ``pyproject.toml`` of the
    working folder, active profile. They are read here because to import Prefect for it takes more than a second.
    """
    for place, url in _configurations():
        if url:
            return str(url).rstrip("/"), place
    return None


def _configurations() -> Iterator[tuple[str, str | None]]:
    yield "PREFECT_API_URL", os.environ.get("PREFECT_API_URL")
    yield str(Path(".env").absolute()), _dotenv(Path(".env")).get("PREFECT_API_URL")
    yield str(Path("prefect.toml").absolute()), _at(_toml(Path("prefect.toml")), "api", "url")
    yield str(Path("pyproject.toml").absolute()), _at(_toml(Path("pyproject.toml")), "tool", "prefect", "api", "url")

    prefect_home = os.environ.get("PREFECT_HOME") or "~/.prefect"
    file = Path(os.environ.get("PREFECT_PROFILES_PATH") or f"{prefect_home}/profiles.toml")
    try:
        file = file.expanduser()
    except RuntimeError:
        raise UserError(f"{file}: there is no such user; mend PREFECT_HOME or PREFECT_PROFILES_PATH") from None
    profiles = _toml(file)
    name = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    if name:
        profile = _at(profiles, "profiles", name)
        if profile is None:  # one of those that come with Prefect
            profile = _at(_toml(_packaged_profiles()), "profiles", name)
        yield f"profile {name!r} of {file}", _at(profile, "PREFECT_API_URL")


def _packaged_profiles() -> Path:
    spec = find_spec("prefect")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "settings" / "profiles.toml"


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(file))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file.absolute()}: not valid TOML: {error}") from None


def _dotenv(file: Path) -> dict[str, str]:
    lines = _text(file, errors="replace") if file.is_file() else ""
    return dict(re.findall(r"^\s*(?:export\s+)?(\w+)\s*=\s*[\"']?([^\"'\s#]*)", lines, flags=re.MULTILINE))


def _text(file: Path, errors: str = "strict") -> str:
    try:
        return file.read_text(encoding="utf-8", errors=errors)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UserError(
            f"{file.absolute()}: Prefect's settings cannot be read ({error.strerror}); mend or unset what names it"
        ) from None


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _status(url: str) -> int | None:
    # A proxy for the outside world must not be asked for this machine's own servers.
    local = re.match(r"https?://(127\.|localhost|\[::1\])", url)
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))
    try:
        with opener.open(f"{url}/health", timeout=HEALTH_SECONDS) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError, http.client.HTTPException):  # the last for an address that is none
        return None


def _free_port(previous_url: str | None) -> int:
    # The previous port, if it is free: bookmarks and a worker that still runs keep their address.
    previous = int(previous_url.rpartition(":")[2].split("/")[0]) if previous_url else 0
    for port in (previous, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise StageError("no free port for the local Prefect server at 127.0.0.1")
