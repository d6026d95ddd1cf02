"""What the parser of the command line is made of: how it says what is wrong, and the values that it takes."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from tasks.foreign_text import escaped

MAXIMUM_WORKERS = 1024
"""More threads than any one machine has cores; OpenMP refuses far larger numbers with lines of its own."""


def say(line: str, status: int) -> int:
    """Print one line for the user, which may quote what strangers wrote; returns the exit status."""
    print(escaped(" ".join(line.splitlines())), file=sys.stderr)
    return status


class Parser(argparse.ArgumentParser):
    """Does not print the usage at every mistake."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line."""
        sys.exit(say(f"{self.prog}: {message}; see {self.prog} --help", 2))


class Version(argparse.Action):
    """Prints the version."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> NoReturn:
        """Look for it only now: that takes longer than to answer --help."""
        from importlib.metadata import version

        print(f"sahajflow {version('sahajflow')}")
        parser.exit()


def bandwidth(text: str) -> float:
    """A number of Mb/s above 0."""
    return _above_zero(text, 1e9, "Mb/s")


def count(text: str) -> int:
    """A number of things, 0 among them."""
    return 0 if text == "0" else positive(text)


def days(text: str) -> float:
    """A number of days above 0."""
    return _above_zero(text, 1e5, "days")


def _above_zero(text: str, limit: float, unit: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < limit:
        raise argparse.ArgumentTypeError(f"{text}: should be a number of {unit} above 0")
    return number


def positive(text: str) -> int:
    """A number of threads or processes."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= MAXIMUM_WORKERS:
        raise argparse.ArgumentTypeError(f"{text}: should be a whole number from 1 to {MAXIMUM_WORKERS}")
    return number
