"""Fetching a model: from a hub on loopback, by the client's own requests, and from the cache."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
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
TOKENIZER = ("config.json", "tokenizer.json")
REPOSITORIES = {
    "safe": (*TOKENIZER, "model.safetensors", "pytorch_model.bin", "modeling.py", "onnx/model.onnx", "README.md"),
    "sharded": (*TOKENIZER, "model.safetensors.index.json", "model-00001-of-00001.safetensors"),
    "old": (*TOKENIZER, "pytorch_model.bin", "flax_model.msgpack"),
}
FETCH = """
import json, sys
from eval.hub_model import fetched
from eval.compared_settings import ComparedModel
from tasks.contract import StageError
found = {}
for name, revision in json.loads(sys.argv[1]):
    try:
        folder = fetched(ComparedModel(hub=f"some/{name}", revision=revision))
        found[f"{name} {revision[0]}"] = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.*"))
    except StageError as error:
        found[f"{name} {revision[0]}"] = str(error)
print(json.dumps(found))
"""


class _Hub(http.server.BaseHTTPRequestHandler):
    """The two kinds of answers that the client asks for: what is in a commit, and a file of it."""

    def do_GET(self) -> None:
        body = self._headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self._headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def _headers(self) -> bytes:
        status, body, headers = self._answer(self.path.partition("?")[0].strip("/").split("/"))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        return body

    def _answer(self, parts: list[str]) -> tuple[int, bytes, dict[str, str]]:
        if parts[:2] != ["api", "models"]:
            body = parts[-1].encode()
            return 200, body, {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
        if parts[3] == "gated":
            return 401, b"", {"X-Error-Code": "GatedRepo"}
        if parts[3] not in REPOSITORIES:
            return 404, b"", {"X-Error-Code": "RepoNotFound"}
        if parts[-1] != COMMIT:
            return 404, b"", {"X-Error-Code": "RevisionNotFound"}
        files = REPOSITORIES[parts[3]]
        if "tree" in parts:
            tree = [{"type": "file", "path": name, "size": len(name), "oid": name} for name in files]
            return 200, json.dumps(tree).encode(), {}
        info = {"id": f"some/{parts[3]}", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
        return 200, json.dumps(info).encode(), {}


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_only_what_is_read_is_fetched_and_refusals_are_told_in_one_line(endpoint: str, tmp_path: Path) -> None:
    asked = [(name, COMMIT) for name in (*REPOSITORIES, "nowhere", "gated")] + [("safe", "1" * 40)]
    # the client reads its address when it is imported
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", FETCH, json.dumps(asked)],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["safe 0"] == [*TOKENIZER[:1], "model.safetensors", "tokenizer.json"]
    assert found["sharded 0"] == [
        *("config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json", "tokenizer.json")
    ]
    assert found["old 0"] == ["config.json", "pytorch_model.bin", "tokenizer.json"]
    assert found["nowhere 0"].startswith(
        "some/nowhere: the hub has no such model, or hides it; check the name, or give"
    )
    assert found["gated 0"].startswith("some/gated: its page asks for an account: accept its conditions there and log")
    assert found["safe 1"] == f"some/safe: has no commit {'1' * 40}; check the revision"
    assert done.stderr == ""


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
