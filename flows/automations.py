"""What the Prefect server does on its own: mark dead runs as crashed, and tell a webhook how runs ended.

A run whose process was killed stays "Running" for ever, since nobody is left to say otherwise, and holds its
deployment's only place. Deployed runs send a heartbeat every three minutes; one that has sent none for
:data:`SILENCE` and has not ended is marked as crashed.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

SILENCE = timedelta(minutes=10)
"""More than three heartbeats of Prefect's 180 s: with fewer, runs that end slowly were marked as crashed
(Prefect issue 18653)."""

CRASH = "sahajflow: mark dead runs as crashed"
NOTIFY = "sahajflow: notify"
BLOCK = "sahajflow-notify"

Level = Literal["all", "end", "failure", "none"]
LEVELS: tuple[Level, ...] = ("all", "end", "failure", "none")

_ENDS = {"Completed", "Failed", "Crashed", "Cancelled", "TimedOut"}
_STATES: dict[Level, set[str]] = {
    "all": {"Running", *_ENDS},
    "end": _ENDS,
    "failure": {"Failed", "Crashed", "TimedOut"},
}


def mark_dead_runs(client: SyncPrefectClient) -> None:
    """Make the automation that marks dead runs as crashed stand."""
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import EventTrigger, Posture

    trigger = EventTrigger(
        posture=Posture.Proactive,
        match={"prefect.resource.id": "prefect.flow-run.*"},
        for_each={"prefect.resource.id"},
        after={"prefect.flow-run.heartbeat"},
        expect={"prefect.flow-run.heartbeat", *_events(_ENDS)},
        threshold=1,
        within=SILENCE,
    )
    message = f"no heartbeat for {SILENCE.seconds // 60} minutes: its process is gone"
    action = ChangeFlowRunState(state=StateType.CRASHED, name=None, message=message, force=False)
    _put(client, CRASH, trigger, [action])


def notify(client: SyncPrefectClient, url: str, level: Level) -> None:
    """Have the server post ``{"text": ...}`` to a webhook, as Slack and its likes take it; "none" ends that.

    The address lies in a block of the server, where webhooks' secrets belong, and in no file of ours.
    """
    from prefect.exceptions import ObjectNotFound

    if level == "none":
        for automation in client.read_automations_by_name(NOTIFY):
            client.delete_automation(automation.id)
        with suppress(ObjectNotFound):
            client.delete_block_document(client.read_block_document_by_name(BLOCK, "custom-webhook").id)
        return
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.events.actions import SendNotification
    from prefect.events.schemas.automations import EventTrigger, Posture

    block = CustomWebhookNotificationBlock(
        name="sahajflow", url=url, method="POST", json_data={"text": "{{subject}}: {{body}}"}
    )
    block_id = block.save(BLOCK, overwrite=True)
    trigger = EventTrigger(
        posture=Posture.Reactive,
        match={"prefect.resource.id": "prefect.flow-run.*"},
        for_each={"prefect.resource.id"},
        expect=_events(_STATES[level]),
        threshold=1,
        within=timedelta(0),
    )
    action = SendNotification(
        block_document_id=block_id,
        subject="sahajflow: {{ flow.name }} {{ flow_run.state.name }}",
        body="{{ flow_run.name }} {{ flow_run.parameters.recipe }} {{ flow_run.state.message }}",
    )
    _put(client, NOTIFY, trigger, [action])


def _events(states: set[str]) -> set[str]:
    return {f"prefect.flow-run.{state}" for state in states}


def _put(client: SyncPrefectClient, name: str, trigger: Any, actions: list[Any]) -> None:
    """Create the automation, or bring the one of that name up to date."""
    from prefect.events.schemas.automations import AutomationCore

    wanted = AutomationCore(name=name, trigger=trigger, actions=actions)
    standing = client.read_automations_by_name(name)
    if standing:
        client.update_automation(standing[0].id, wanted)
    else:
        client.create_automation(wanted)
    for double in standing[1:]:
        client.delete_automation(double.id)
