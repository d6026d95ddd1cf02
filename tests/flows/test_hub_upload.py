"""Uploads by the real client to a small hub of our own."""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from small_hub import TOKEN, Hub, Repository, small_hub

from flows.export import Export, ExportFile
from flows.hub_upload import address, check_name, upload
from tasks.contract import StageError, UserError

CARD = "---\nlicense: mit\n---\n\n# card\n"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    with small_hub() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its store is a program of its own
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield running


def an_export(folder: Path, weights: bytes = b"weights", card: str = CARD) -> Export:
    (folder / "model").write_bytes(weights)
    files = {"README.md": card.encode(), "config.json": b"{}\n", "model.safetensors": folder / "model"}
    made = []
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.read_bytes()
        made.append(ExportFile(name, content, len(data), hashlib.sha256(data).hexdigest()))
    return Export(tuple(made), ())


def send(export: Export, name: str = "anna/model", private: bool = False, force: bool = False) -> str | None:
    return upload(export, name, "Export it", private=private, force=force)


def test_one_commit_makes_the_repository_hold_the_export(hub: Hub, tmp_path: Path) -> None:
    commit = send(an_export(tmp_path), private=True)
    repository = hub.repositories["anna/model"]
    assert commit == f"{hub.url}/anna/model/commit/{repository.sha}"
    assert repository.private
    assert repository.messages == ["initial commit", "Export it"]
    held = {name: content for name, content in repository.files.items() if name != ".gitattributes"}
    assert held == {"README.md": CARD.encode(), "config.json": b"{}\n", "model.safetensors": b"weights"}
    # the card is asked about before anything is sent
    assert hub.requests.index("POST /api/validate-yaml") < hub.requests.index(
        "POST /api/models/anna/model/preupload/main"
    )


def test_the_second_time_there_is_nothing_to_do(hub: Hub, tmp_path: Path) -> None:
    send(an_export(tmp_path))
    assert send(an_export(tmp_path)) is None
    assert len(hub.repositories["anna/model"].messages) == 2


def test_other_content_is_replaced_by_force_alone_and_only_what_differs(hub: Hub, tmp_path: Path) -> None:
    send(an_export(tmp_path))
    repository = hub.repositories["anna/model"]
    repository.files["mine.txt"] = b"kept"
    other = an_export(tmp_path, weights=b"WEIGHTS")
    told = r"anna/model: has other content: model\.safetensors \(differs\), mine\.txt \(not of this export\); --force"
    with pytest.raises(UserError, match=told):
        send(other)
    assert repository.files["model.safetensors"] == b"weights"
    assert send(other, force=True)
    assert (repository.files["model.safetensors"], repository.files["mine.txt"]) == (b"WEIGHTS", b"kept")
    assert repository.written == ["model.safetensors"]


def test_somebody_elses_repository_is_not_written_into(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["anna/model"] = Repository(files={"notes.md": b"by hand"})
    with pytest.raises(UserError, match=r"has other content: notes\.md \(not of this export\)"):
        send(an_export(tmp_path))
    assert hub.repositories["anna/model"].files == {"notes.md": b"by hand"}


def test_a_commit_between_looking_and_writing_is_not_covered(hub: Hub, tmp_path: Path) -> None:
    hub.before_commit = lambda: hub.repositories["anna/model"].messages.append("theirs")
    with pytest.raises(StageError, match="was changed by someone else meanwhile"):
        send(an_export(tmp_path))
    assert "README.md" not in hub.repositories["anna/model"].files


def test_a_public_repository_does_not_become_private_unseen(hub: Hub, tmp_path: Path) -> None:
    send(an_export(tmp_path))
    with pytest.raises(UserError, match="--private: anna/model is public already"):
        send(an_export(tmp_path), private=True)


def test_metadata_that_the_hub_refuses_stop_it_before_anything_is_sent(hub: Hub, tmp_path: Path) -> None:
    told = r'README\.md: the hub refuses its metadata: "license" must be one of the known ones; mend'
    with pytest.raises(UserError, match=told):
        send(an_export(tmp_path, card="---\nlicense: my-own\n---\n"))
    assert list(hub.repositories["anna/model"].files) == [".gitattributes"]
    assert send(an_export(tmp_path))  # the next try meets an empty repository of its own


def test_without_a_token_or_with_a_wrong_one(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match="the hub refuses the token"):
        send(an_export(tmp_path))
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    hub.requests.clear()
    with pytest.raises(UserError, match="no token for the hub: set HF_TOKEN"):
        send(an_export(tmp_path))
    assert hub.requests == []


def test_what_may_not_be_written(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="others/model: the token may not write there"):
        send(an_export(tmp_path), "others/model")


@pytest.mark.parametrize("part", ["whoami", "validate-yaml", "repos/create", "objects/batch", "commit"])
def test_the_token_is_never_told(hub: Hub, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.refuses[part] = 418
    with pytest.raises(StageError) as caught:
        send(an_export(tmp_path))
    assert "no luck for the token [token]" in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_a_long_message_does_not_cut_the_token_in_two(hub: Hub, tmp_path: Path) -> None:
    hub.refuses["commit"] = 418
    hub.complaint = "x" * 285
    with pytest.raises(StageError) as caught:
        send(an_export(tmp_path))
    assert "xxx [token]" in str(caught.value)
    assert TOKEN[:5] not in str(caught.value)


def test_without_a_network(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # discard: nobody listens
    with pytest.raises(StageError, match="the hub is not reached"):
        send(an_export(tmp_path))


@pytest.mark.parametrize("name", ["model", "a/b/c", "anna/..", "anna/with space", "", "anna/"])
def test_names_of_repositories(name: str) -> None:
    with pytest.raises(UserError, match="--hub"):
        check_name(name)


def test_a_good_name_and_its_page(hub: Hub) -> None:
    check_name("anna/bengali-albert_2.0")
    assert address("anna/model") == f"{hub.url}/anna/model"
