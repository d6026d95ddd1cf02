"""Reader of CoNLL files: one word a line with its tag, sentences separated by blank lines.

Columns are separated by TABs if the line has one, else by spaces. Comment lines ("# ...") and ``-DOCSTART-`` lines
are skipped. The original WikiANN form ``bn:word`` is recognised when every word of a file has the same prefix, and
the prefix is removed. Tags may be IOB1, IOB2 or BIOES; they are returned as written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from eval.labels import checked_tag, is_tag
from tasks.contract import UserError
from tasks.user_files import shown

Sentences = list[list[str]]

_PREFIX = re.compile(r"[a-z][a-z-]*:")


def read_utf8(path: Path) -> str:
    """The file's text without byte order mark. Raises UserError with the line that is not UTF-8."""
    data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{shown(path)}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; convert the file"
        ) from None


def read_conll(
    path: Path, token_column: int | None = None, tag_column: int | None = None, labels: Sequence[str] | None = None
) -> tuple[Sentences, Sentences]:
    """Words and tags of every sentence.

    Args:
        path: the file.
        token_column: number of the words' column, from 0; negative ones count from the end. None: the first.
        tag_column: number of the tags' column. None: the last.
        labels: allowed tags; None allows all.

    Raises:
        UserError: with file and line, for a line without word or tag, a tag of no known scheme or not allowed, text
            that is not UTF-8; and, unless both columns are given, for a line with more or fewer columns than the
            file's first: where the tag is missing, another column would be read as the tag.
    """
    strict = token_column is None or tag_column is None
    token_column = 0 if token_column is None else token_column
    tag_column = -1 if tag_column is None else tag_column
    width = 0
    name = shown(path)
    sentences: Sentences = []
    tags: Sentences = []
    checked: set[str] = set()
    fresh = True  # whether the next word starts a sentence
    for number, line in enumerate(read_utf8(path).split("\n"), start=1):
        line = line.rstrip("\r")
        if not line.strip() or line.startswith("-DOCSTART-"):
            fresh = True
            continue
        fields = line.split("\t") if "\t" in line else line.strip(" ").split(" ")
        if "\t" not in line:
            fields = [field for field in fields if field]
        if _is_comment(line, fields, fresh, width):
            continue
        place = f"{name}:{number}"
        if len(fields) < 2:
            raise UserError(
                f"{place}: {line.strip()[:60]!r} has no tag; a line is a word, a TAB or space, and its tag"
            )
        try:
            word, tag = fields[token_column], fields[tag_column]
        except IndexError:
            wanted = f"token_column {token_column} and tag_column {tag_column}"
            raise UserError(f"{place}: {len(fields)} columns are too few for {wanted}") from None
        width = width or len(fields)
        if strict and len(fields) != width:
            raise UserError(
                f"{place}: {len(fields)} columns where the file's first word has {width}, so the tag may be missing; "
                "correct it, or give token_column and tag_column"
            )
        if not word:
            raise UserError(f"{place}: the word is empty; a line is a word, a TAB or space, and its tag")
        if fresh:
            sentences.append([])
            tags.append([])
            fresh = False
        sentences[-1].append(word)
        if tag not in checked:
            checked.add(checked_tag(tag, labels, place))
        tags[-1].append(tag)
    return _without_prefix(sentences), tags


def _is_comment(line: str, fields: list[str], fresh: bool, width: int) -> bool:
    """ "# sent_id = 3" is one anywhere, "#newdoc" before a sentence; "#<TAB>O" and "# O" are words.

    So is "# NN O" in a file whose words have three columns (``width``; 0 before the first).
    """
    if not line.startswith("#") or "\t" in line or (len(fields) == (width or 2) and is_tag(fields[-1])):
        return False
    return fresh or line.startswith("# ")


def _without_prefix(sentences: Sentences) -> Sentences:
    first = _PREFIX.match(sentences[0][0]) if sentences else None
    if first is None:
        return sentences
    prefix = first.group()
    if not all(word.startswith(prefix) for sentence in sentences for word in sentence):
        return sentences
    return [[word.removeprefix(prefix) for word in sentence] for sentence in sentences]
