import io
import re
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from flows import terminal
from flows.terminal import Terminal

NASTY = "[bold]x[/] \x1b[2J"


def peers(samples: int, names: tuple[str, ...] = ("peer-0", NASTY)) -> list[dict[str, str]]:
    return [{"peer": name, "samples": f"{samples:,}", "state": "computing"} for name in names]


class Screen:
    """A terminal of 120 columns that remembers what was drawn."""

    def __init__(self) -> None:
        self.file = io.StringIO()
        console = Console(file=self.file, force_terminal=True, width=120, height=40, color_system=None)
        self.shown = Terminal(console, 0)

    def text(self) -> str:
        return self.file.getvalue()


class Log:
    """A console that is no terminal, and a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = io.StringIO()
        self.now = 1000.0
        monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.shown = Terminal(Console(file=self.file, width=40), 0)

    def lines(self) -> list[str]:
        return self.file.getvalue().splitlines()


def test_the_table_stands_below_the_bar_and_goes_with_it() -> None:
    screen = Screen()
    with screen.shown.progress("pretrain") as progress:
        progress(1, 10, unit="steps", note="loss 5.31 [/dim]", rows=peers(1234))
        progress(2, 10, unit="steps", note="loss 5.30 [/dim]")
        time.sleep(0.6)
    text = screen.text()
    frame = text[text.index("loss 5.30 [/dim]") :]
    header, first, second = (line.rstrip() for line in frame.splitlines()[1:4])
    assert header.split() == ["peer", "samples", "state"]
    assert first.split() == ["peer-0", "1,234", "computing"]
    assert second.split() == ["[bold]x[/]", "[2J", "1,234", "computing"]
    assert "\x1b[2J" not in text, "a stranger's name clears the screen"
    assert len({line.index("1,234") for line in (first, second)}) == 1
    # Transient: bar, header and two rows are erased, line by line.
    assert re.findall(r"(?:\x1b\[1A\x1b\[2K)+$", text.rstrip("\r"))[0].count("\x1b[2K") == 4


def test_only_so_many_rows_are_drawn() -> None:
    screen = Screen()
    with screen.shown.progress("pretrain") as progress:
        progress(1, 10, rows=peers(1, tuple(f"peer-{number}" for number in range(20))))
        time.sleep(0.4)
    assert "peer-11" in screen.text()
    assert "peer-12" not in screen.text()
    assert "and 8 more" in screen.text()


def test_drawing_does_not_follow_every_call() -> None:
    screen = Screen()
    began = time.monotonic()
    with screen.shown.progress("pretrain") as progress:
        for step in range(2000):
            progress(step, 2000, unit="steps", rows=peers(step))
        took = time.monotonic() - began
    frames = screen.text().count("pretrain ")
    assert frames <= 3 + 4 * took, (frames, took)
    assert took < 5


def test_without_a_terminal_the_table_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    with log.shown.progress("pretrain") as progress:
        for step in range(1, 141):
            log.now += 1
            progress(step, 140, unit="steps", note="loss 5.31 [/]", rows=peers(step))
    lines = log.lines()
    tables = [line for line in lines if line.startswith("    ")]
    assert lines[0] == "  pretrain: 10 of 140 steps, 2 min 10 s left  loss 5.31 [/]"
    assert tables == [
        f"    peer-0: samples {step}, state computing; [bold]x[/] [2J: samples {step}, state computing"
        for step in (10, 70, 130)
    ]
    assert len(lines) - len(tables) == 14


def test_without_rows_a_log_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    with log.shown.progress("corpus") as progress:
        progress(0, 100, unit="documents")
        log.now += 9
        progress(40, 100, unit="documents")
        assert log.lines() == []
        log.now += 1
        progress(50, 100, unit="documents", note="b.txt")
        # The last rows count where the newest call has none.
        progress(60, 100, rows=peers(7, tuple(f"p{number}" for number in range(14))))
        log.now += 10
        progress(70, 100)
    first, second, table = log.lines()
    assert first == "  corpus: 50 of 100 documents, 10 s left  b.txt"
    assert second.startswith("  corpus: 70 of 100")
    assert table.startswith("    p0: samples 7, state computing; p1: samples 7")
    assert table.endswith("p11: samples 7, state computing; and 2 more")
