from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import errors
from tokenizers import Tokenizer, models, pre_tokenizers

from tasks.contract import StageError, UserError
from tasks.tokenizer_measuring import load_references
from tasks.tokenizer_settings import ReferenceTokenizer

HUB = ReferenceTokenizer(name="other", hub="group/model", revision="0" * 40)


def saved(folder: Path) -> str:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


def test_a_reference_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def download(*place: Any, **where: Any) -> str:
        asked.append((place, where))
        return saved(tmp_path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    tokenizer = load_references([HUB])["other"]
    assert asked == [(("group/model", "tokenizer.json"), {"revision": "0" * 40})]
    # Whole texts count, whatever length the file was saved with.
    assert tokenizer.encode("a b a b").ids == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (errors.LocalEntryNotFoundError("x"), StageError, "the hub does not answer and nothing is cached"),
        (errors.HFValidationError("x"), UserError, "group/model at 0+: x"),
        (ConnectionError("offline"), StageError, "offline; try again"),
    ],
)
def test_the_hubs_errors(error: Exception, kind: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*place: Any, **where: Any) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(kind, match=rf"tokenizer\.references\.0: .*{says}") as caught:
        load_references([HUB])
    assert "\n" not in str(caught.value)
