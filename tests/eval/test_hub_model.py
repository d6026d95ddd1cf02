import sys
from pathlib import Path

import huggingface_hub
import pytest

from eval.compared_model import STAGE
from eval.compared_settings import ComparedModel
from eval.hub_model import fetched
from tasks.contract import StageError, no_progress

sys.path.insert(0, str(Path(__file__).parent))
from others_models import make

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Path:
    """An empty cache of the hub, and no network."""
    for name, value in (("HF_HUB_CACHE", str(tmp_path / "hub")), ("HF_HUB_OFFLINE", True)):
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    return tmp_path / "hub"


def test_a_model_in_the_hubs_cache_is_read_without_network(hub, tmp_path):
    settings = ComparedModel(hub="some/model", revision=COMMIT, keep_accents=True)
    assert settings.fetches == "some/model at 0123456"
    make("albert", hub / "models--some--model" / "snapshots" / COMMIT)
    out, here = tmp_path / "out", tmp_path / "here"
    out.mkdir()
    here.mkdir()
    STAGE.run(settings, {}, out, no_progress)
    STAGE.run(ComparedModel(path=str(make("albert", tmp_path / "local")), keep_accents=True), {}, here, no_progress)
    weights = "checkpoint/model.safetensors"
    assert (out / weights).read_bytes() == (here / weights).read_bytes()


def test_the_newest_commit_is_named_in_the_record(hub, tmp_path, caplog):
    caplog.set_level("INFO")
    make("bert", hub / "models--some--model" / "snapshots" / COMMIT)
    (hub / "models--some--model" / "refs").mkdir()
    (hub / "models--some--model" / "refs" / "main").write_text(COMMIT)
    metrics = STAGE.run(ComparedModel(hub="some/model", revision="main"), {}, tmp_path, no_progress)
    assert metrics["commit"] == COMMIT
    assert f"some/model: main is commit {COMMIT}" in caplog.text


def test_without_network_and_copy_the_model_and_the_remedy_are_named(hub):
    with pytest.raises(
        StageError, match=r"^some/model: the hub does not answer.*local: FOLDER.*or leave the model out"
    ):
        fetched(ComparedModel(hub="some/model", revision=COMMIT))


def refusing(error: type[Exception]):
    def snapshot_download(*_, **__):
        raise error.__new__(error)

    return snapshot_download


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("LocalEntryNotFoundError", "the hub does not answer"),
        ("HfHubHTTPError", "cannot be fetched"),
    ],
)
def test_what_the_hub_refuses_is_told_in_one_line(error, said, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refusing(getattr(huggingface_hub.errors, error)))
    with pytest.raises(StageError, match=r"^some/model: ") as told:
        fetched(ComparedModel(hub="some/model", revision=COMMIT))
    assert said in str(told.value)
    assert "\n" not in str(told.value)
