"""What a person at a terminal sees: one line a stage, with a bar and the time left; plain lines elsewhere.

A stage that has a table of its present state gets it shown below the bar.
"""

from __future__ import annotations

import itertools
import logging
import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.logging import RichHandler
from rich.padding import Padding
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from flows.graph import Node
from flows.step_work import StageOutcome, Work
from tasks import contract
from tasks.contract import Rows
from tasks.foreign_text import printable

PLAIN_SECONDS = 10.0
"""Without a terminal (a log file, CI) a line this often shows that the stage is alive."""

PLAIN_TABLE_SECONDS = 60.0
"""Without a terminal, the stage's table follows that line this often, as one more line."""

TABLE_ROWS = 12
"""Rows of a stage's table that are shown at most: all of it has to fit on the screen."""


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 05 s`` or ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


class Estimate:
    """Time left from the pace since the first call: a resumed stage starts above 0, and that part took no time."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def left(self, done: float, total: float) -> float | None:
        """Seconds left, or None while nothing can be said."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, done)
        start, first = self._first
        if done <= first or total <= 0:
            return None
        return (now - start) / (done - first) * (total - done)


class _Left(ProgressColumn):
    def render(self, task: Task) -> Text:
        left = task.fields.get("left")
        return Text("" if left is None else f"{duration(left)} left", style="cyan")


class _Bars(Progress):
    """A bar for each stage at work, with the newest table below. Drawn by rich's own thread, a few times a second at
    most, from the first stage's beginning until there is none at work."""

    rows: Rows = ()

    def __init__(self, console: Console):
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description:<34}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
            _Left(),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            console=console,
            transient=True,
            refresh_per_second=4,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """What rich draws at every refresh."""
        yield from super().get_renderables()
        if self.rows:
            yield Padding(_table(self.rows), (0, 0, 0, 4))

    def bar(self, label: str) -> tuple[TaskID, contract.Progress]:
        """A new bar, and the callback that moves it."""
        estimate = Estimate()
        task = self.add_task(label, total=1, unit="", note="", left=None)

        def move(done: float, total: float, *, unit: str = "", note: str = "", rows: Rows = ()) -> None:
            left = estimate.left(done, total)
            self.rows = rows or self.rows
            self.update(task, completed=done, total=total, unit=unit, note=note, left=left)

        return task, move


def _table(rows: Rows) -> Table:
    """The first rows as a table; cells are text, whatever markup a stranger may have put into one."""
    titles = list(rows[0])
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for number, title in enumerate(titles):
        table.add_column(Text(title), justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows[:TABLE_ROWS]:
        table.add_row(*(Text(printable(row.get(title, ""))) for title in titles))
    for line in _left_out(rows):
        table.add_row(Text(line, style="dim"))
    return table


class _PlainLines:
    """The progress callback where there is no terminal: a line now and then, and more rarely one with the table."""

    def __init__(self, console: Console, label: str):
        self._console = console
        self._label = label
        self._estimate = Estimate()
        self._rows: Rows = ()
        self._last = time.monotonic()
        self._last_table = -math.inf

    def __call__(self, done: float, total: float, *, unit: str = "", note: str = "", rows: Rows = ()) -> None:
        left = self._estimate.left(done, total)
        self._rows = rows or self._rows
        now = time.monotonic()
        if now - self._last < PLAIN_SECONDS:
            return
        self._last = now
        rest = f", {duration(left)} left" if left is not None else ""
        self._print(f"  {self._label}: {done:,.0f} of {total:,.0f} {unit}{rest}  {note}")
        if self._rows and now - self._last_table >= PLAIN_TABLE_SECONDS:
            self._last_table = now
            self._print(f"    {_as_line(self._rows)}")

    def _print(self, line: str) -> None:
        # As a `Text`, so that nothing in it is taken for markup.
        self._console.print(Text(line), soft_wrap=True)


def _as_line(rows: Rows) -> str:
    """ "peer-0: samples 120, state computing; peer-1: ..."."""
    name, *titles = rows[0]
    parts = [
        f"{printable(row.get(name, ''))}: " + ", ".join(f"{title} {printable(row.get(title, ''))}" for title in titles)
        for row in rows[:TABLE_ROWS]
    ]
    return "; ".join([*parts, *_left_out(rows)])


def _left_out(rows: Rows) -> list[str]:
    return [f"and {len(rows) - TABLE_ROWS:,} more"] if len(rows) > TABLE_ROWS else []


def show_logs(console: Console) -> None:
    """Send the stages' log lines to the terminal, above the bars."""
    handler: logging.Handler = (
        RichHandler(console=console, show_time=False, show_path=False, show_level=False, markup=False)
        if console.is_terminal
        else logging.StreamHandler(sys.stderr)
    )
    handler.setFormatter(logging.Formatter("  %(message)s"))
    for name in ("sahajflow", "flows", "tasks", "eval"):
        log = logging.getLogger(name)
        log.handlers = [handler]
        log.setLevel(logging.INFO)
        log.propagate = False


class Terminal:
    """Shows nodes while they are worked on, also several at once in threads.

    :meth:`run_node` is a `RunNode` for `run_chain`.
    """

    def __init__(self, console: Console, seed_runs: int):
        self._console = console
        self._bars = _Bars(console)
        self._at_work = 0
        self._guard = threading.Lock()
        self._seed_runs = seed_runs
        self._seed_run = itertools.count(1)

    def run_node(self, node: Node, work: Work) -> StageOutcome:
        """Do the work with a bar while it goes on, and leave one line when it is done."""
        label = self._label(node)
        with self.progress(label) as progress:
            outcome = work(progress)
        how = "reused" if outcome.action == "reused" else duration(outcome.seconds)
        self._console.print(
            f"[green]✓[/] {label:<34} {how:>12}   [dim]{_gist(outcome)}[/]", highlight=False, soft_wrap=True
        )
        return outcome

    @contextmanager
    def progress(self, label: str) -> Iterator[contract.Progress]:
        """A progress callback for one stage that draws a bar, or prints a line now and then."""
        if not self._console.is_terminal:
            yield _PlainLines(self._console, label)
            return
        with self._guard:
            if self._at_work == 0:
                self._bars = _Bars(self._console)
                self._bars.start()
            self._at_work += 1
            bars = self._bars
            task, bar = bars.bar(label)
        try:
            yield bar
        finally:
            with self._guard:
                self._at_work -= 1
                if self._at_work == 0:
                    bars.stop()
                else:
                    bars.remove_task(task)

    def _label(self, node: Node) -> str:
        if not node.name.startswith("seed-run/"):
            return node.name
        model, task, seed = node.name.removeprefix("seed-run/").rsplit("/", 2)
        return f"{model} {task}, seed {seed} ({next(self._seed_run)}/{self._seed_runs})"


def _gist(outcome: StageOutcome) -> str:
    """The few figures of a stage that tell a person whether it went well."""
    metrics = outcome.record.metrics
    stage = outcome.record.stage
    if stage == "corpus":
        return f"{metrics.get('documents', 0):,} documents, {metrics.get('bytes', 0) / 1e6:,.1f} MB"
    if stage == "tokenizer":
        return f"{metrics.get('entries', 0):,} entries, {metrics.get('tokens_per_word', 0):.2f} tokens per word"
    if stage == "pack":
        train = metrics.get("splits", {}).get("train", {})
        return f"{train.get('tokens_in', 0):,} tokens in {train.get('blocks', 0):,} blocks"
    if stage == "pretrain":
        loss, entropy = metrics.get("validation_loss"), metrics.get("unigram_entropy")
        return "" if loss is None or entropy is None else f"validation loss {loss:.2f} (unigram entropy {entropy:.2f})"
    if stage == "seed-run":
        return f"{metrics.get('metric', 'score')} {100 * metrics.get('score', 0):.2f} %"
    return ""
