from typing import Any

import pytest
from pydantic import ValidationError

from eval.publishing import PublishingSettings


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"languages": ["Bengali"]}, "'Bengali' is no ISO 639 code"),
        ({"languages": ["bn", ""]}, "'' is no ISO 639 code"),
        ({"license": "other"}, "license other needs license_name and license_link"),
        ({"license": "mit", "license_name": "mine"}, "go with license other only"),
        ({"license_link": "https://example.org"}, "go with license other only"),
        ({"license": ""}, "at least 1 character"),
        ({"source_licenses": {"texts": ""}}, "at least 1 character"),
        ({"licence": "mit"}, "Extra inputs"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        PublishingSettings(**settings)


def test_right_settings_and_that_nothing_is_assumed() -> None:
    PublishingSettings(languages=["bn", "sat", "multilingual"], license="apache-2.0")
    PublishingSettings(license="other", license_name="mine", license_link="https://example.org/licence")
    nothing = PublishingSettings()
    assert (nothing.languages, nothing.license, nothing.source_licenses, nothing.peer_names) == ((), None, {}, False)
