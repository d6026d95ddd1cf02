"""The plan: for every stage whether it would run, be reused, or has to wait, and why.

Inputs count by digest, and stages are not all deterministic, so the fingerprint of a stage behind one that will run
is not known before that one has ended: it *waits*, and is then run or reused. Planning reads the store and the user's
files; it changes nothing and needs no network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from flows.graph import STAGES, Node, needed_by
from tasks.contract import Stage, UserError
from tasks.identity import differences, fingerprint_of, identity_of
from tasks.record import Damaged, Record
from tasks.store import FileDigests, Store


@dataclass(frozen=True)
class Selection:
    """Which stages the user asked for; all by default."""

    only: str | None = None
    start: str | None = None
    until: str | None = None
    force: tuple[str, ...] = ()

    def stages(self) -> tuple[str, ...]:
        """The selected stages, in order."""
        if self.only:
            return (self.only,)
        start = STAGES.index(self.start) if self.start else 0
        end = STAGES.index(self.until) if self.until else len(STAGES) - 1
        if start > end:
            raise UserError(f"--from {self.start} --until {self.until}: {self.until} comes before {self.start}")
        return STAGES[start : end + 1]


@dataclass(frozen=True)
class Step:
    """What is planned for one node. ``fingerprint`` and ``path`` are None while it waits."""

    node: Node
    action: Literal["run", "reuse", "wait"]
    reason: str
    identity: dict[str, Any]
    fingerprint: str | None
    path: Path | None
    record: Record | None
    forced: bool = False

    def as_json(self) -> dict[str, str | None]:
        """The form of ``plan --json``; the path is absolute."""
        return {
            "stage": self.node.name,
            "action": self.action,
            "reason": self.reason,
            "fingerprint": self.fingerprint,
            "path": str(self.path) if self.path else None,
        }


def make_plan(
    nodes: Sequence[Node], store: Store, selection: Selection, *, verify: bool = False
) -> tuple[list[Step], list[Step]]:
    """Plan a run.

    Args:
        nodes: in an order in which inputs come first.
        store: where results are looked for.
        selection: what to do; of the rest, only what the selected nodes read is looked at.
        verify: compare the hashes of all files, not only their sizes.

    Returns:
        The steps of the selected nodes, and those of the nodes that they read.

    Raises:
        UserError: a user's file is missing, or a node that is not selected is needed and has no result.
    """
    store.check_format()
    chosen = selection.stages()
    for stage in selection.force:
        if stage not in chosen:
            raise UserError(f"--force {stage}: is not among the selected stages ({', '.join(chosen)})")
    selected = [node.name for node in nodes if node.group in chosen]
    needed = needed_by(nodes, selected) - set(selected)
    files = FileDigests(store)
    records = cache(lambda stage: list(store.records(stage)))
    steps: dict[str, Step] = {}
    for node in nodes:
        if node.name in needed or node.name in selected:
            identity = identity_of(node.settings, files)
            forced = node.name in selected and node.group in selection.force
            steps[node.name] = _plan_node(node, identity, steps, store, records, verify=verify, forced=forced)
            if node.name in needed and steps[node.name].action != "reuse":
                raise UserError(
                    f"{'/'.join(chosen)} needs the result of {node.name}, which does not exist "
                    f"({steps[node.name].reason}); run --until {node.group} first"
                )
    files.save()
    return [steps[name] for name in selected], [steps[node.name] for node in nodes if node.name in needed]


def counted(stage: Stage, record: Record) -> str:
    """What of an input enters the fingerprint of a stage: its digest, never its fingerprint, so that equal bytes are
    equal; except for a stage that shows the record itself."""
    return f"{record.digest} {record.fingerprint}" if stage.shows_records else record.digest


def _counted_inputs(node: Node, steps: dict[str, Step]) -> dict[str, str] | None:
    """What counts of a node's inputs, by input name, or None as long as one of them is not known."""
    known = {}
    for name, source in node.inputs.items():
        record = steps[source].record
        if steps[source].action != "reuse" or record is None:
            return None
        known[name] = counted(node.stage, record)
    return known


def _plan_node(
    node: Node,
    identity: dict[str, Any],
    steps: dict[str, Step],
    store: Store,
    records: Callable[[str], list[Record]],
    *,
    verify: bool,
    forced: bool,
) -> Step:
    digests = _counted_inputs(node, steps)
    if digests is None:
        waits_for = [name for name in node.inputs.values() if steps[name].action != "reuse"]
        reason = f"waits for {waits_for[0]}" + (f" and {len(waits_for) - 1} more" if len(waits_for) > 1 else "")
        return Step(node, "wait", "forced; " + reason if forced else reason, identity, None, None, None, forced)
    fingerprint = fingerprint_of(node.stage, identity, digests)
    path = store.artifact(node.stage.name, fingerprint)

    def run(reason: str) -> Step:
        reason += f"; fetches {node.fetches} from the hub unless it is there" if node.fetches else ""
        return Step(node, "run", reason, identity, fingerprint, path, None, forced)

    if forced:
        return run("forced")
    try:
        record = store.look(node.stage.name, fingerprint, hashes=verify)
    except Damaged as damage:
        return run(f"damaged: {damage}; goes to trash and is built again")
    if record is not None:
        return Step(node, "reuse", "nothing changed", identity, fingerprint, path, record)
    if store.work(node.stage.name, fingerprint).exists():
        return run("unfinished: goes on where it stopped")
    return run(_why_new(node, identity, digests, records(node.stage.name)))


def _why_new(node: Node, identity: dict[str, Any], digests: dict[str, str], records: list[Record]) -> str:
    """What differs from the most similar result in the store, the newest one of several; an upgrade comes first."""
    by_digest = {name: value.partition(" ")[0] for name, value in digests.items()}
    wanted = {"settings": identity, "input": by_digest, "version": node.stage.version}
    candidates = []
    for record in records:
        inputs = {name: source.digest for name, source in record.inputs.items()}
        changes = differences({"settings": record.identity, "input": inputs, "version": record.version}, wanted)
        changes.sort(key=lambda change: change[0] != "version")
        candidates.append((len(changes), -record.finished.timestamp(), changes, record))
    if not candidates:
        return "no result yet"
    _, _, changes, nearest = min(candidates, key=lambda candidate: candidate[:2])
    if not changes:
        return "an input was made anew, with equal content"
    told = [_change(node, nearest, *change) for change in changes[:3]]
    more = [f"{len(changes) - 3} more"] if len(changes) > 3 else []
    return "; ".join([*told, *more])


def _change(node: Node, nearest: Record, place: str, old: Any, new: Any) -> str:
    kind, _, key = place.partition(".")
    if kind == "input":
        return f"{key} has another content" if old and new else f"{key} is {'new' if new else 'gone'} as input"
    if kind == "version":
        made = f"the result of {nearest.finished:%Y-%m-%d} was made by version {old}"
        return f"{node.stage.name} is at version {new} in this sahajflow, {made}"
    label = key if node.stage.name == "pretrain" else f"{node.group}.{key}"
    return f"{label}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = "unset" if value is None else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
