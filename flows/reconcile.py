"""What a file of deployments says against what the server has: the difference, and removing what is gone.

Prefect's own `deploy` adds and changes; a schedule or a deployment that is deleted from the file stays on the server
and goes on starting runs. Whether a schedule is switched off on the server is the operator's decision, and stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.contract import UserError
from tasks.strict_yaml import cut, read_yaml

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import DeploymentSchedule
    from prefect.client.schemas.responses import DeploymentResponse

DEFINITIONS = Path(__file__).with_name("prefect.yaml")
"""The deployments. In the repository a link to the file at the root; in an installed package the file itself."""

OURS = "sahajflow"
"""Tag of the deployments that `up` answers for; others on the server are left alone."""

_ENTRYPOINT = r"(\w+\.)+[a-zA-Z0-9]+"
"""A flow whose name on the server follows from it. A deployment whose name there is another would be removed as one
that the file does not have."""


@dataclass(frozen=True)
class Difference:
    """One thing in which the server differs from the file."""

    sign: str
    """ "+" is in the file alone, "-" on the server alone, "~" is in both and differs."""
    what: str

    def __str__(self) -> str:
        return f"{self.sign} {self.what}"


def read_definitions(file: Path) -> list[dict[str, Any]]:
    """The deployments of a ``prefect.yaml``.

    Raises:
        UserError: the file cannot be read, deploys nothing, or has a deployment that `up` could not answer for.
    """
    content = read_yaml(file)
    deployed = content.get("deployments") if isinstance(content, dict) else None
    if not isinstance(deployed, list) or not deployed:
        raise UserError(f"{file}: has no deployments; start from a copy of {DEFINITIONS}")
    for number, one in enumerate(deployed):
        place = f"{file}: deployments.{number}"
        if not isinstance(one, dict) or not all(isinstance(one.get(key), str) for key in ("name", "entrypoint")):
            raise UserError(f"{place}: should have a name and an entrypoint such as flows.chain.chain")
        if not re.fullmatch(_ENTRYPOINT, one["entrypoint"]):
            raise UserError(
                f"{place}: entrypoint {cut(one['entrypoint'])} should be a flow by its module: flows.chain.chain"
            )
        for key in ("parameters", "work_pool"):
            if not isinstance(one.get(key) or {}, dict):
                raise UserError(f"{place}: {key} should be a mapping")
        schedules = one.get("schedules") or []
        if not isinstance(schedules, list) or not all(isinstance(schedule, dict) for schedule in schedules):
            raise UserError(f"{place}: schedules should be a list of mappings, each with a slug")
        if OURS not in (one.get("tags") or []):
            raise UserError(f"{place}: should have the tag {OURS}, by which `up` knows what it deployed")
        slugs = [schedule.get("slug") for schedule in schedules]
        if None in slugs or len(set(slugs)) < len(slugs):
            raise UserError(f"{place}: each schedule should have a slug of its own, by which it is found again")
    return deployed


def name_of(deployed: dict[str, Any]) -> str:
    """ "flow/deployment", as Prefect calls it."""
    return f"{deployed['entrypoint'].rpartition('.')[2]}/{deployed['name']}"


def pools_of(definitions: list[dict[str, Any]]) -> list[str]:
    """The work pools that the deployments use, sorted."""
    return sorted({(one.get("work_pool") or {}).get("name") or "cpu" for one in definitions})


def differences(client: SyncPrefectClient, definitions: list[dict[str, Any]]) -> list[Difference]:
    """What `up` would change on the server."""
    standing = _standing(client)
    wanted = {name_of(one): one for one in definitions}
    found = [Difference("-", f"deployment {name}") for name in standing if name not in wanted]
    for name, one in wanted.items():
        if name not in standing:
            found.append(Difference("+", f"deployment {name}"))
            found += [Difference("+", f"schedule {slug} of {name}: {_cron(s)}") for slug, s in _schedules(one).items()]
        else:
            found += _changed(name, one, standing[name])
    return found


def _changed(name: str, wanted: dict[str, Any], standing: DeploymentResponse) -> Iterator[Difference]:
    limit = standing.global_concurrency_limit
    there = {
        "entrypoint": standing.entrypoint,
        "parameters": standing.parameters,
        "work_pool": standing.work_pool_name,
        "limit": limit.limit if limit else None,
    }
    here = {
        "entrypoint": wanted["entrypoint"],
        "parameters": wanted.get("parameters") or {},
        "work_pool": (wanted.get("work_pool") or {}).get("name"),
        "limit": _limit(wanted),
    }
    for key, value in here.items():
        if value != there[key]:
            yield Difference("~", f"{key} of {name}: {there[key]} -> {value}")
    schedules = {schedule.slug: schedule for schedule in standing.schedules if schedule.slug}
    for slug, schedule in _schedules(wanted).items():
        if slug not in schedules:
            yield Difference("+", f"schedule {slug} of {name}: {_cron(schedule)}")
            continue
        old = schedules[slug].schedule
        now = f"{getattr(old, 'cron', old)} {getattr(old, 'timezone', '')}"
        if now != _cron(schedule):
            yield Difference("~", f"schedule {slug} of {name}: {now} -> {_cron(schedule)}")
        if (schedules[slug].parameters or {}) != (schedule.get("parameters") or {}):
            yield Difference("~", f"parameters of schedule {slug} of {name}")
    for slug in schedules:
        if slug not in _schedules(wanted):
            yield Difference("-", f"schedule {slug} of {name}")


def operators_choices(client: SyncPrefectClient) -> list[tuple[str, DeploymentSchedule]]:
    """Schedules that an operator switched off or made on Prefect's page (those have no slug), each with the name of
    its deployment: where there is one without a slug, Prefect's own `deploy` makes all of the deployment's anew."""
    return [
        (name, schedule)
        for name, standing in _standing(client).items()
        for schedule in standing.schedules
        if not schedule.slug or not schedule.active
    ]


def restore_choices(client: SyncPrefectClient, choices: list[tuple[str, DeploymentSchedule]]) -> None:
    """Bring back what :func:`operators_choices` found, as far as a deployment took it away."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    standing = _standing(client)
    for name, schedule in choices:
        if name not in standing:
            continue
        deployed = standing[name]
        if not schedule.slug and schedule.id not in {one.id for one in deployed.schedules}:
            again = DeploymentScheduleCreate(
                schedule=schedule.schedule, active=schedule.active, parameters=schedule.parameters or {}
            )
            client.create_deployment_schedules(deployed.id, [again])
        for one in deployed.schedules:
            if one.slug and one.slug == schedule.slug and one.active:
                client.update_deployment_schedule(deployed.id, one.id, active=False)


def remove_gone(client: SyncPrefectClient, definitions: list[dict[str, Any]]) -> list[Difference]:
    """Remove deployments of ours that are not in the file, and schedules with a slug that is not; says what went.

    A schedule without a slug was made on Prefect's page, and stays.
    """
    wanted = {name_of(one): one for one in definitions}
    gone = []
    for name, standing in _standing(client).items():
        if name not in wanted:
            client.delete_deployment(standing.id)
            gone.append(Difference("-", f"deployment {name}"))
            continue
        for schedule in standing.schedules:
            if schedule.slug and schedule.slug not in _schedules(wanted[name]):
                client.delete_deployment_schedule(standing.id, schedule.id)
                gone.append(Difference("-", f"schedule {schedule.slug} of {name}"))
    return gone


def _standing(client: SyncPrefectClient) -> dict[str, DeploymentResponse]:
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[OURS]))
    found: dict[str, DeploymentResponse] = {}
    while page := client.read_deployments(deployment_filter=ours, limit=200, offset=len(found)):
        for one in page:
            found[f"{client.read_flow(one.flow_id).name}/{one.name}"] = one
    return dict(sorted(found.items()))


def _schedules(deployed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {schedule["slug"]: schedule for schedule in deployed.get("schedules") or []}


def _limit(deployed: dict[str, Any]) -> Any:
    """Prefect takes a number alone as well."""
    limit = deployed.get("concurrency_limit")
    return limit.get("limit") if isinstance(limit, dict) else limit


def _cron(schedule: dict[str, Any]) -> str:
    when = schedule.get("cron") or schedule.get("rrule") or f"every {schedule.get('interval')} s"
    return f"{when} {schedule.get('timezone', 'UTC')}"
