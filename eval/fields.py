"""Types of fields that several settings models share."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from tasks.contract import absolute_path


def like(pattern: str, remedy: str) -> AfterValidator:
    """A string of this form, as a whole; pydantic's own check would show the user the pattern."""

    def check(text: str | None) -> str | None:
        if text is not None and not re.fullmatch(pattern, text):
            raise ValueError(remedy)
        return text

    return AfterValidator(check)


def _absolute(path: str | None, info: ValidationInfo) -> str | None:
    return None if path is None else absolute_path(path, info)


absolute = AfterValidator(_absolute)
"""A path that is made absolute against the recipe's folder, for what enters the identity in another way."""


def name_of(what: str, example: str) -> AfterValidator:
    """A name that can stand in keys and in the names of results."""
    characters = "lower-case letters (a to z), digits, dashes and underscores"
    return like("[a-z0-9][a-z0-9_-]*", f"a {what}'s name should be {characters}, such as {example}")


RepositoryName = Annotated[str, like(r"[\w.-]+/[\w.-]+", "should be owner/name, as in the page's address")]

ModelRevision = Annotated[
    str,
    like(
        "[0-9a-f]{40}|main",
        "pin it: a revision is the full commit hash, 40 digits of 0-9 and a-f; or main, the newest when it is fetched",
    ),
]

Revision = Annotated[str, like("[0-9a-f]{40}", "pin it: a revision is the full commit hash, 40 digits of 0-9 and a-f")]
