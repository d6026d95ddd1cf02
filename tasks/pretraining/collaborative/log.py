"""From the peers' records to the log of global steps and the ledger of contributions.

The log, ``logs/training.jsonl``, has a line per global step with what every peer put into it; the ledger,
``logs/ledger.json``, is the sum of these lines, so a run that was interrupted has one ledger over all of it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.pretraining.collaborative.records import PeerRecord, StepEntry
from tasks.pretraining.optimizers import learning_rate_at
from tasks.pretraining.settings import PretrainingSettings
from tasks.pretraining.training_log import truncate_log
from tasks.pretraining.validation import Validation, perplexity

logger = logging.getLogger(__name__)

RECENT = 20
"""Lines that are kept at hand, for those who watch."""

PATIENCE = 2
"""A step's line is written when a peer is so many steps further: until then one that lags may add to it."""


class StepLog:
    """Collects what peers tell of their steps and writes a line for each step, in order.

    Args:
        path: ``logs/training.jsonl``; continued.
        settings: of the run.
        sequence_length: tokens of a sequence.
    """

    def __init__(self, path: Path, settings: PretrainingSettings, sequence_length: int):
        self.path, self._settings, self._length = path, settings, sequence_length
        self._lock = threading.Lock()
        self._open: dict[int, dict[str, tuple[str, StepEntry]]] = {}
        self._heard: dict[int, float] = {}
        self._computed: dict[str, tuple[int, int]] = {}
        self.written = 0
        """The last step that has its line."""
        self._tokens = 0
        self.loss: float | None = None
        """Training loss of the last written step, in nats."""
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        """The newest lines of global steps."""

    def go_on_from(
        self, step: int, unwritten: Sequence[dict[str, Any]] = (), counts: Mapping[str, tuple[int, int]] | None = None
    ) -> float:
        """Continue the log after an interruption.

        Args:
            step: where the swarm is; the lines after it are dropped, since these steps are made again.
            unwritten: what :attr:`unwritten` was at the last checkpoint.
            counts: what :attr:`counts` was then; the peers' processes may be others by now, or the same.

        Returns:
            Seconds of training at the last line that is left; 0 if there is none.
        """
        truncate_log(self.path, step)
        lines = steps_of(self.path)
        with self._lock:
            if lines:
                self.written, self._tokens, self.loss = (lines[-1][name] for name in ("step", "tokens", "loss"))
            self._computed = dict(counts or {})
            for one in unwritten:
                entry = StepEntry(**one["entry"])
                if entry.step > self.written:  # its line may have been written after the checkpoint
                    self._open.setdefault(entry.step, {})[one["peer"]] = (one["name"], entry)
        return float(lines[-1]["seconds"]) if lines else 0.0

    def hear(self, peers: Mapping[str, PeerRecord], seconds: float, *, last: bool = False) -> None:
        """Take in the peers' records, by key digest, and write the lines of the steps that are complete.

        Args:
            peers: the newest records.
            seconds: of training so far.
            last: nothing more will come; writes all.
        """
        with self._lock:
            for key, peer in peers.items():
                before, newest = self._computed.get(key, (0, 0))
                if peer.computed < newest:  # the same peer, in a new process
                    before, newest = before + newest, 0
                self._computed[key] = (before, peer.computed)
                for entry in peer.steps:
                    if self.written < entry.step <= self._settings.steps:
                        self._heard.setdefault(entry.step, seconds)
                        self._open.setdefault(entry.step, {})[key] = (peer.name, entry)
            complete = max(self._open, default=0) - (0 if last else PATIENCE)
            for step in sorted(step for step in self._open if step <= complete):
                self._write(step, self._open.pop(step), self._heard.pop(step, seconds))

    @property
    def computed(self) -> dict[str, int]:
        """Sequences that each peer has computed by what it told, by key digest; over all of its processes."""
        with self._lock:
            return {key: before + newest for key, (before, newest) in self._computed.items()}

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """The same of a peer's earlier processes and of its present one: it belongs into a checkpoint."""
        with self._lock:
            return dict(self._computed)

    @property
    def unwritten(self) -> list[dict[str, Any]]:
        """What was heard of steps that have no line yet, as plain values: it belongs into a checkpoint."""
        with self._lock:
            return [
                {"peer": key, "name": name, "entry": entry.model_dump()}
                for parts in self._open.values()
                for key, (name, entry) in parts.items()
            ]

    def tell_validation(self, step: int, found: Validation) -> None:
        """Write the line of a validation."""
        line = {
            "step": step,
            "validation_loss": found.loss,
            "perplexity": perplexity(found.loss),
            "masked_accuracy": found.masked_accuracy,
            "validation_sop_accuracy": found.sop_accuracy,
        }
        with self._lock:
            self._append(line)

    def _write(self, step: int, entries: Mapping[str, tuple[str, StepEntry]], seconds: float) -> None:
        everyone = [entry for _, entry in entries.values()]
        averaged = [entry for entry in everyone if entry.outcome == "averaged"]
        # Without a group each peer went on with its own gradients: the step is that of the one who had most.
        used = averaged or [max(everyone, key=lambda entry: entry.samples)]
        samples = sum(entry.samples for entry in used)
        masked = max(1, sum(entry.masked for entry in used))
        mlm = sum(entry.mlm for entry in used) / masked
        orders = [entry.order for entry in used if entry.order is not None]
        order = sum(orders) / max(1, samples) if orders else None
        self._tokens += samples * self._length
        if step > self.written + 1:
            logger.warning("nobody told of the global steps %d to %d: the log lacks them", self.written + 1, step - 1)
        self.written, self.loss = step, mlm + (order or 0.0)
        slowest = max(used, key=lambda entry: entry.matching + entry.reducing + entry.computing)
        self.recent.append(
            {
                "step": step,
                "loss": self.loss,
                "mlm_loss": mlm,
                "sop_loss": order,
                "learning_rate": learning_rate_at(step - 1, self._settings),
                "tokens": self._tokens,
                "samples": samples,
                "seconds": round(seconds, 3),
                "group": max(entry.group for entry in used),
                "outcome": used[0].outcome,
                "matching": slowest.matching,
                "reducing": slowest.reducing,
                "computing": slowest.computing,
                "contributions": [
                    {"peer": key, "name": name}
                    | entry.model_dump(
                        include={"samples", "outcome", "group", "aggregated", "matching", "reducing", "computing"}
                    )
                    for key, (name, entry) in sorted(entries.items())
                ],
            }
        )
        self._append(self.recent[-1])

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def steps_of(path: Path) -> list[dict[str, Any]]:
    """The lines of global steps, without those of validations."""
    if not path.exists():
        return []
    # not splitlines: a peer's name may hold one of the separators that only Unicode knows
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [line for line in lines if "contributions" in line]


def summary(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the newest global steps were like.

    Returns:
        ``steps``; ``outcomes`` of the peers' rounds, counted; ``seconds`` of a step on average by phase; and ``peers``
        with the outcomes of each by key digest.
    """
    parts = [part for line in lines for part in line["contributions"]]
    peers: dict[str, Counter[str]] = {}
    for part in parts:
        peers.setdefault(part["peer"], Counter())[part["outcome"]] += 1
    phases = ("computing", "matching", "reducing")
    return {
        "steps": len(lines),
        "outcomes": dict(Counter(part["outcome"] for part in parts)),
        "seconds": {phase: sum(line[phase] for line in lines) / max(1, len(lines)) for phase in phases},
        "peers": {key: dict(counts) for key, counts in peers.items()},
    }


def _used(line: dict[str, Any]) -> list[dict[str, Any]]:
    """The contributions that went into a step: those that were averaged; without a group, the largest."""
    parts = line["contributions"]
    return [part for part in parts if part["outcome"] == "averaged"] or [max(parts, key=lambda part: part["samples"])]


def ledger(
    lines: list[dict[str, Any]],
    settings: PretrainingSettings,
    end: str,
    final: Mapping[str, Any],
    computed: Mapping[str, int],
) -> dict[str, Any]:
    """Who gave what, over all steps.

    Args:
        lines: of the log.
        settings: of the run.
        end: "target" or "deadline".
        final: names of the peers whose last weights were compared, their distance, and its bound.
        computed: sequences that each peer has computed, by key digest.
    """
    samples = sum(line["samples"] for line in lines)
    by_peer: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    used: Counter[str] = Counter()
    for line in lines:
        for part in line["contributions"]:
            by_peer.setdefault(part["peer"], []).append((line["step"], part))
        for part in _used(line):
            used[part["peer"]] += part["samples"]
    given = sum(part["samples"] for parts in by_peer.values() for _, part in parts)
    count = max(1, len(lines))
    per_step = {
        name: round(sum(line[name] for line in lines) / count, 4) for name in ("matching", "reducing", "computing")
    }
    seconds = lines[-1]["seconds"] if lines else 0.0
    return {
        "target_step": settings.steps,
        "step": lines[-1]["step"] if lines else 0,
        "end": end,
        "target_batch": settings.batch_size,
        "samples": samples,
        "lost": sum(max(0, count - used[key]) for key, count in computed.items()),
        "seconds": seconds,
        "peers": [
            _of_peer(key, parts, given) | {"lost": max(0, computed.get(key, 0) - used[key])}
            for key, parts in sorted(by_peer.items(), key=lambda item: item[1][0][1]["name"])
        ],
        "groups": {str(size): number for size, number in sorted(Counter(line["group"] for line in lines).items())},
        "outcomes": dict(Counter(line["outcome"] for line in lines)),
        "per_step": {**per_step, "seconds": round(seconds / count, 4)},
        "final": dict(final),
    }


def _of_peer(key: str, parts: list[tuple[int, dict[str, Any]]], given: int) -> dict[str, Any]:
    samples = sum(part["samples"] for _, part in parts)
    return {
        "name": parts[-1][1]["name"],
        "peer": key,
        "samples": samples,
        "share": round(samples / given, 4) if given else 0.0,
        "steps": len(parts),
        "first_step": parts[0][0],
        "last_step": parts[-1][0],
        "aggregated": round(sum(part.get("aggregated", 0.0) for _, part in parts) / len(parts), 4),
        "matching": round(sum(part["matching"] for _, part in parts), 3),
        "reducing": round(sum(part["reducing"] for _, part in parts), 3),
        "computing": round(sum(part["computing"] for _, part in parts), 3),
        "outcomes": dict(Counter(part["outcome"] for _, part in parts)),
    }
