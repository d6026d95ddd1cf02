from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

sys.path.insert(0, str(Path(__file__).parent))
from tokenizer_runs import changed

from tasks.identity import identity_of
from tasks.tokenizer_settings import TokenizerSettings
from tasks.tokenizer_training import STAGE


def test_a_relative_path_starts_at_the_recipes_folder(tmp_path: Path) -> None:
    def definition(value: str) -> str:
        return TokenizerSettings.model_validate({"definition": value}, context={"folder": tmp_path}).definition

    assert definition("mine.yaml") == str(tmp_path / "mine.yaml")
    assert definition("/elsewhere/mine.yaml") == "/elsewhere/mine.yaml"
    assert definition("template") == "template"


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValidationError, match="less than or equal to 1000000"):
        TokenizerSettings(vocabulary_size=1_000_001)
    with pytest.raises(ValidationError, match="there is no user '~nobody-of-that-name'"):
        TokenizerSettings(definition="~nobody-of-that-name/mine.yaml")


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ({"name": "a"}, "give either `file` or `hub`"),
        ({"name": "a", "file": "x", "hub": "y", "revision": "0" * 40}, "give either `file` or `hub`"),
        ({"name": "a", "hub": "y"}, "`hub` and `revision` go together"),
        ({"name": "a", "hub": "y", "revision": "main"}, "pin it"),
        ({"name": " a", "file": "x"}, "a name is one line"),
    ],
)
def test_references_that_cannot_be(reference: dict[str, str], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        TokenizerSettings.model_validate({"references": [reference]})
    with pytest.raises(ValidationError, match="two references are called 'a'"):
        TokenizerSettings.model_validate({"references": [{"name": "a", "file": "x"}] * 2})


def test_settings_name_an_unknown_definition() -> None:
    with pytest.raises(ValidationError, match="did you mean template"):
        TokenizerSettings(definition="templat")
    assert STAGE.name == "tokenizer"


def test_identity_follows_the_content(tmp_path: Path) -> None:
    def identity(definition: str) -> dict[str, Any]:
        return identity_of(TokenizerSettings(definition=definition), lambda path: path.name)

    path = changed(tmp_path)
    moved = tmp_path / "elsewhere.yaml"
    moved.write_bytes(Path(path).read_bytes())
    assert identity(path) == identity(str(moved))
    before = identity(path)
    assert identity(changed(tmp_path, vocabulary_size=8000)) != before
    assert identity("template") != identity("bengali-unigram-32k")
