"""Labels: what counts as an IOB2 label set, how a label set is derived, and the check of every label read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from tasks.contract import UserError

OUTSIDE = "O"
_IOB2 = re.compile(r"[BI]-\S+")


def is_iob2(tag: str) -> bool:
    """Whether ``tag`` is O, B-TYPE or I-TYPE."""
    return tag == OUTSIDE or _IOB2.fullmatch(tag) is not None


def ner_label_problem(labels: Sequence[str]) -> str | None:
    """What is wrong with a label set for NER, or None. seqeval would only warn and cut off first letters."""
    for label in labels:
        if not is_iob2(label):
            return f"{label!r} is not an IOB2 tag (O, B-TYPE or I-TYPE)"
    if OUTSIDE not in labels:
        return "the tag O is missing"
    for label in labels:
        if label.startswith("I-") and f"B-{label[2:]}" not in labels:
            return f"{label!r} is there but not 'B-{label[2:]}'"
    return None


def derived_labels(kind: str, found: Iterable[str]) -> tuple[str, ...]:
    """The label set of a training split: sorted; for NER O, then B- and I- of each type that occurs."""
    if kind != "ner":
        return tuple(sorted(set(found)))
    types = sorted({tag[2:] for tag in found if tag != OUTSIDE})
    return (OUTSIDE, *(f"{prefix}-{name}" for name in types for prefix in "BI"))


def checked_tag(tag: str, labels: Sequence[str] | None, place: str) -> str:
    """``tag`` if it is IOB2 and, where ``labels`` are known, one of them. Raises UserError."""
    if not is_iob2(tag):
        raise UserError(f"{place}: tag {tag!r} is not IOB2: use O, B-TYPE or I-TYPE, or give another tag_column")
    return checked_label(tag, labels, place)


def checked_label(label: str, labels: Sequence[str] | None, place: str) -> str:
    """``label`` if it is one of ``labels``, or if those are not known yet. Raises UserError."""
    if labels is None or label in labels:
        return label
    near = difflib.get_close_matches(label, labels, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(labels)}"
    raise UserError(f"{place}: unknown label {label[:60]!r}; {hint} Correct it, or name it in the task's labels")
