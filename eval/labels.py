"""Labels: tagging schemes and IOB2, how a label set is derived, and the check of every label read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from tasks.contract import UserError

OUTSIDE = "O"
_IOB2 = re.compile(r"[BI]-\S+")
_TAG = re.compile(r"[BIES]-\S+")
_OF_IOB2 = {"B": "B", "I": "I", "E": "I", "S": "B"}


def is_iob2(tag: str) -> bool:
    """Whether ``tag`` is O, B-TYPE or I-TYPE."""
    return tag == OUTSIDE or _IOB2.fullmatch(tag) is not None


def is_tag(tag: str) -> bool:
    """Whether ``tag`` is one of IOB1, IOB2 or BIOES: O, or B-, I-, E- or S- with a type."""
    return tag == OUTSIDE or _TAG.fullmatch(tag) is not None


def to_iob2(tags: Sequence[str]) -> list[str]:
    """One sentence's tags of IOB1, IOB2 or BIOES as IOB2, with the same entities.

    All three are read by conlleval's rules (Tjong Kim Sang, CoNLL-2000), so nobody has to name the scheme: an entity
    starts at B- and S-, and at I- or E- where none of that type is open; it ends at E-, S-, O or another type. An I-
    without its B- becomes B-: in IOB1 that is how most entities start, in IOB2 it is a slip.
    """
    converted = []
    inside = None  # type of the entity that may go on
    for tag in tags:
        if tag == OUTSIDE:
            inside = None
            converted.append(tag)
            continue
        prefix, name = tag[0], tag[2:]
        starts = prefix in "BS" or name != inside
        converted.append(f"{'B' if starts else 'I'}-{name}")
        inside = None if prefix in "ES" else name
    return converted


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
    """``tag`` if it is IOB1, IOB2 or BIOES and, where ``labels`` are known, of one of them. Raises UserError.

    An E- counts as the I- and an S- as the B- that :func:`to_iob2` makes of them.
    """
    if not is_tag(tag):
        raise UserError(
            f"{place}: tag {tag[:60]!r} is not IOB2, IOB1 or BIOES: use O, B-TYPE and I-TYPE, or give "
            "another tag_column"
        )
    checked_label(tag if tag == OUTSIDE else _OF_IOB2[tag[0]] + tag[1:], labels, place)
    return tag


def checked_label(label: str, labels: Sequence[str] | None, place: str) -> str:
    """``label`` if it is one of ``labels``, or if those are not known yet. Raises UserError."""
    if labels is None or label in labels:
        return label
    near = difflib.get_close_matches(label, labels, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(labels)}"
    raise UserError(f"{place}: unknown label {label[:60]!r}; {hint} Correct it, or name it in the task's labels")
