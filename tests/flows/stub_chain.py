"""A chain of stub stages that behave like real ones and take no time.

Each leaves what it was asked to make (its settings and its inputs' digests), so equal settings give equal bytes and
other ones others, as real stages do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field

from flows.execution import carry_out
from flows.graph import Node
from flows.plan import Selection, Step, make_plan
from flows.step_work import StageOutcome
from tasks.contract import Settings, Stage, UserPath
from tasks.record import read_record
from tasks.store import Store


class StubSettings(Settings):
    size: int = 1
    unused: str = ""
    paths: list[UserPath] = Field(default_factory=list)


class Chain:
    """Five stub nodes in a store: corpus -> tokenizer -> pack -> evaluate -> report."""

    order = ("corpus", "tokenizer", "pack", "evaluate", "report")

    def __init__(self, root: Path):
        self.store = Store(root / "store")
        self.settings = {name: StubSettings() for name in self.order}
        self.noise: dict[str, str] = {}
        """Changes a stage's bytes without being an input of it, as in a stage that is not deterministic."""
        self.meanwhile: dict[str, Callable[[Path], object]] = {}
        """Called in the middle of a stage, with its work folder."""
        self.versions = dict.fromkeys(self.order, 1)
        """Of the stages; an upgrade of sahajflow raises some."""
        self.ran: list[str] = []

    def nodes(self) -> list[Node]:
        nodes = []
        for previous, name in zip((None, *self.order), self.order, strict=False):
            stage = Stage(name, self.versions[name], StubSettings, self._run(name), shows_records=name == "report")
            nodes.append(Node(name, stage, self.settings[name], {previous: previous} if previous else {}))
        return nodes

    def plan(self, **selection: Any) -> list[Step]:
        return make_plan(self.nodes(), self.store, Selection(**selection))[0]

    def actions(self, **selection: Any) -> dict[str, str]:
        return {step.node.name: step.action for step in self.plan(**selection)}

    def run(self, *, verify: bool = False, **selection: Any) -> dict[str, StageOutcome]:
        self.ran.clear()
        steps, inputs = make_plan(self.nodes(), self.store, Selection(**selection), verify=verify)
        outcomes = carry_out(steps, inputs, self.store, lambda node, work: work(lambda *_, **__: None), verify=verify)
        return {outcome.name: outcome for outcome in outcomes}

    def _run(self, name: str) -> Any:
        def run(settings: StubSettings, inputs: dict[str, Path], folder: Path, progress: Any) -> dict[str, Any]:
            self.ran.append(name)
            if name in self.meanwhile:
                self.meanwhile[name](folder)
            made = {
                "size": settings.size,
                "files": [Path(path).read_text() for path in settings.paths],
                "inputs": {key: read_record(path).digest for key, path in inputs.items()},
                "noise": self.noise.get(name, ""),
            }
            (folder / "out.json").write_text(json.dumps(made))
            progress(1, 1)
            return {"size": settings.size}

        return run
