"""Markdown and self-contained HTML from a report or a comparison: the only module that turns their figures into text.

Both formats show the same tables, which :mod:`eval.report_tables` lays out; the templates give them their place.
Every value is escaped unless it is :class:`markupsafe.Markup`: in HTML by jinja2, in Markdown by :func:`in_markdown`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from eval.charts import accuracy_chart, loss_chart, probe_chart
from eval.comparison_schema import RunComparison
from eval.comparison_view import comparison_view
from eval.history import HistoryEntry
from eval.history_view import history_views
from eval.report_cost import cost_view
from eval.report_peers import peers_view
from eval.report_schema import Report
from eval.report_scores import run_facts, task_view
from eval.report_tables import (
    Table,
    corpus_table,
    environment_tables,
    loss_table,
    packing_table,
    stages_table,
    timing_table,
    tokenizer_table,
)
from eval.report_wording import READING, probe_sentence

_TEMPLATES = Path(__file__).parent / "templates"
_ADDRESS = re.compile(r"https?://[^\s<>\"'|`]*[^\s<>\"'|`.,;:)]")


def to_html(report: Report, history: Sequence[HistoryEntry] = ()) -> str:
    """The page: inline style and drawings, no script, nothing loaded from anywhere."""
    return _html("report.html.j2").render(
        _content(report),
        history=history_views(history),
        loss_chart=loss_chart(report.pretraining),
        accuracy_chart=accuracy_chart(report.pretraining),
        probe_chart=probe_chart(report.pretraining),
    )


def to_markdown(report: Report, history: Sequence[HistoryEntry] = ()) -> str:
    """The same content for terminals, GitHub and Prefect."""
    return markdown_environment().get_template("report.md.j2").render(_content(report), history=history_views(history))


def comparison_to_html(comparison: RunComparison) -> str:
    """Several runs side by side, as a page like a report's."""
    return _html("comparison.html.j2").render(comparison_view(comparison))


def comparison_to_markdown(comparison: RunComparison) -> str:
    """The same content for terminals and GitHub."""
    return markdown_environment().get_template("comparison.md.j2").render(comparison_view(comparison))


def _html(template: str) -> Template:
    environment = Environment(autoescape=True, **_options())
    environment.filters["linked"] = linked
    return environment.get_template(template)


def markdown_environment() -> Environment:
    """What Markdown templates are rendered with: every value is escaped, and one that is missing is an error."""
    environment = Environment(
        autoescape=False,
        finalize=lambda value: value if isinstance(value, Markup) else in_markdown(str(value)),
        **_options(),
    )
    environment.filters["grid"] = markdown_table
    environment.filters["foreign"] = lambda text: Markup(in_markdown(text, links=False))
    environment.filters["fenced"] = _fenced
    return environment


def _options() -> dict[str, Any]:
    return {
        "loader": FileSystemLoader(_TEMPLATES),
        "undefined": StrictUndefined,
        "trim_blocks": True,
        "lstrip_blocks": True,
        "keep_trailing_newline": True,
    }


def _content(report: Report) -> dict[str, Any]:
    return {
        "report": report,
        "important": [caution for caution in report.cautions if caution.important],
        "run_facts": run_facts(report),
        "several_runs": any(model.n > 1 for task in report.results.tasks for model in task.models),
        "reading": READING,
        "tasks": [task_view(task, number) for number, task in enumerate(report.results.tasks, start=1)],
        "loss_table": loss_table(report.pretraining),
        "probe": probe_sentence(report.pretraining.probe) if report.pretraining.probe else None,
        "peers": peers_view(report.collaboration) if report.collaboration else None,
        "tokenizer_table": tokenizer_table(report.tokenizer),
        "packing_table": packing_table(report.packing),
        "corpus_table": corpus_table(report.corpus),
        "timing_table": timing_table(report),
        "cost": cost_view(report.cost) if report.cost else None,
        "stages_table": stages_table(report),
        "environment_tables": environment_tables(report),
        "recipe_yaml": yaml.safe_dump(report.recipe, sort_keys=False, allow_unicode=True, width=100),
    }


def linked(text: str) -> Markup:
    """Escaped text in which web addresses are links; only http and https, so no script can hide in one."""
    parts, end = [], 0
    for match in _ADDRESS.finditer(text):
        address = escape(match.group())
        parts += [escape(text[end : match.start()]), Markup(f'<a href="{address}">{address}</a>')]
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])


def in_markdown(text: str, *, links: bool = True) -> str:
    """One line of text in which nothing is Markdown or HTML syntax; web addresses become links.

    Without ``links`` none does: GitHub would make one of every address, so its beginning is broken by a backslash.
    """
    text = " ".join(text.split())
    parts, end = [], 0
    for match in _ADDRESS.finditer(text) if links else ():
        parts += [_escaped_markdown(text[end : match.start()]), f"<{match.group()}>"]
        end = match.end()
    rest = _escaped_markdown(text[end:])
    if not links:
        rest = re.sub(r"(?i)(?:https?|ftp)(?=:)|www(?=\.)", r"\g<0>\\", rest)
    line = "".join([*parts, rest])
    # At its start these would make the line a heading, a list or a rule.
    return re.sub(r"^(\d+(?=[.)](?:\s|$))|(?=[#+=-]))", r"\1\\", line)


def _escaped_markdown(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", text)


def markdown_table(table: Table) -> Markup:
    """The table in pipe syntax, its caption in bold above it."""
    titles = [in_markdown(title) for title in table.titles]
    rules = ["---:" if letter == "r" else ":---" for letter in table.alignment]
    rows = [[in_markdown(cell, links=not table.foreign) for cell in row] for row in [*table.rows, *table.totals]]
    lines = [
        f"**{in_markdown(table.caption)}**",
        "",
        *(f"| {' | '.join(cells)} |" for cells in [titles, rules, *rows]),
    ]
    return Markup("\n".join(lines))


def _fenced(code: str) -> Markup:
    """A code block whose fence is longer than any run of backticks inside."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", code) or [""]))
    return Markup(f"{fence}yaml\n{code.rstrip()}\n{fence}")
