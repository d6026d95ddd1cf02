"""What a recipe says about publishing its model: languages, licences, and whether peers are named.

None of it changes a result, so no stage reads it: it goes straight into the model card
(:mod:`eval.model_card`), and what is left out here is called unknown there.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from tasks.contract import Settings

MULTILINGUAL = "multilingual"
"""The hub's special value for a model of many languages."""

Text = Annotated[str, Field(min_length=1, max_length=200)]


class PublishingSettings(Settings):
    """What the model card says beside what was measured."""

    languages: tuple[str, ...] = Field(
        (), description="ISO 639 codes of two or three letters, such as bn, or multilingual; empty: not stated"
    )
    license: Text | None = Field(
        None, description="the model's licence by the hub's identifier, such as apache-2.0; null: not stated"
    )
    license_name: Text | None = Field(None, description="name of the licence, with `license: other` only")
    license_link: Text | None = Field(None, description="where that licence can be read")
    source_licenses: dict[str, Text] = Field(
        default_factory=dict, description="licence of each source of the corpus, by its name; missing: not stated"
    )
    peer_names: bool = Field(
        False, description="name the peers as they called themselves; false numbers them: a name may be a host's"
    )

    @field_validator("languages")
    @classmethod
    def _codes(cls, languages: tuple[str, ...]) -> tuple[str, ...]:
        for code in languages:
            if code != MULTILINGUAL and not re.fullmatch("[a-z]{2,3}", code):
                raise ValueError(f"{code!r} is no ISO 639 code of two or three letters, such as bn or sat")
        return languages

    @model_validator(mode="after")
    def _named_licence(self) -> PublishingSettings:
        named = (self.license_name is not None, self.license_link is not None)
        if self.license == "other" and not all(named):
            raise ValueError("license other needs license_name and license_link")
        if self.license != "other" and any(named):
            raise ValueError("license_name and license_link go with license other only")
        return self
