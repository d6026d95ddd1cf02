"""A small Hugging Face hub on the loopback interface: the endpoints that the client's uploads and downloads need."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

TOKEN = "hf_" + "k" * 34
OWNER = "anna"
LICENCES = {"apache-2.0", "mit", "other"}


@dataclass
class Repository:
    private: bool = False
    files: dict[str, bytes] = field(default_factory=lambda: {".gitattributes": b"*.safetensors filter=lfs\n"})
    messages: list[str] = field(default_factory=lambda: ["initial commit"])
    written: list[str] = field(default_factory=list)
    """Files of the last commit."""

    @property
    def sha(self) -> str:
        return hashlib.sha1(json.dumps(self.messages).encode()).hexdigest()


@dataclass
class Hub:
    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    before_commit: Any = None
    """Called before a commit is looked at."""
    refuses: dict[str, int] = field(default_factory=dict)
    """Status to answer with, by a part of the path."""
    complaint: str = "no luck for the token"
    """What it then says before the token."""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        for part, status in self.hub.refuses.items():
            if part in path:
                return self.answer(status, {"error": f"{self.hub.complaint} {TOKEN}"})
        if not path.startswith("/large/") and token not in {"", TOKEN}:
            return self.answer(401, {"error": "Invalid credentials in Authorization header"})
        for pattern, function in _ROUTES:
            if match := re.fullmatch(pattern, f"{self.command} {path}"):
                return function(self, body, *match.groups())
        return self.answer(404, {"error": "not found"}, X_Error_Code="EntryNotFound")

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    def whoami(self, body: bytes) -> None:
        self.answer(200, {"name": OWNER, "type": "user"})

    def validate(self, body: bytes) -> None:
        metadata = yaml.safe_load(json.loads(body)["content"].split("---")[1])
        if metadata.get("license") not in {None, *LICENCES}:
            return self.answer(400, {"errors": [{"message": '"license" must be one of the known ones'}]})
        return self.answer(200, {"errors": [], "warnings": []})

    def info(self, body: bytes, name: str) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            return self.answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        siblings = []
        for file, content in repository.files.items():
            sibling: dict[str, Any] = {"rfilename": file, "size": len(content), "blobId": _git(content)}
            if file.endswith(".safetensors"):
                sibling["lfs"] = {"sha256": _sha256(content), "size": len(content), "pointerSize": 130}
            siblings.append(sibling)
        facts = {"id": name, "modelId": name, "private": repository.private, "sha": repository.sha, "tags": []}
        return self.answer(200, {**facts, "siblings": siblings, "downloads": 0, "likes": 0})

    def create(self, body: bytes) -> None:
        wanted = json.loads(body)
        if wanted["organization"] != OWNER:
            return self.answer(403, {"error": "You don't have the rights to create a model under this namespace"})
        private = wanted.get("private", False) or wanted.get("visibility") == "private"
        name = f"{OWNER}/{wanted['name']}"
        self.hub.repositories[name] = Repository(private)
        return self.answer(200, {"url": f"{self.hub.url}/{name}", "name": name, "id": name})

    def preupload(self, body: bytes, name: str) -> None:
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for file in json.loads(body)["files"]
        ]
        self.answer(200, {"files": files})

    def batch(self, body: bytes, name: str) -> None:
        objects = json.loads(body)["objects"]
        for one in objects:
            one["actions"] = {"upload": {"href": f"{self.hub.url}/large/{one['oid']}"}}
        self.answer(200, {"transfer": "basic", "objects": objects}, Content_Type="application/vnd.git-lfs+json")

    def store(self, body: bytes, digest: str) -> None:
        assert _sha256(body) == digest
        self.hub.large[digest] = body
        self.answer(200)

    def commit(self, body: bytes, name: str) -> None:
        if self.hub.before_commit:
            self.hub.before_commit()
        repository = self.hub.repositories[name]
        lines = [json.loads(line) for line in body.splitlines()]
        header = next(line["value"] for line in lines if line["key"] == "header")
        if header.get("parentCommit") != repository.sha:
            return self.answer(412, {"error": "A commit has happened since. Please refresh and try again."})
        repository.written = []
        for line in lines:
            value = line["value"]
            if line["key"] != "header":
                repository.written.append(value["path"])
            if line["key"] == "file":
                assert value["encoding"] == "base64"
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repository.files[value["path"]] = self.hub.large[value["oid"]]
        repository.messages.append(header["summary"])
        oid = repository.sha
        return self.answer(200, {"commitUrl": f"{self.hub.url}/{name}/commit/{oid}", "commitOid": oid})

    def resolve(self, body: bytes, name: str, file: str) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None or file not in repository.files:
            return self.answer(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
        content = repository.files[file]
        return self.answer(200, content, ETag=f'"{_sha256(content)}"', X_Repo_Commit=repository.sha)


_NAME = r"([\w.-]+/[\w.-]+)"
_ROUTES = [
    (r"GET /api/whoami-v2", _Handler.whoami),
    (r"POST /api/validate-yaml", _Handler.validate),
    (rf"GET /api/models/{_NAME}", _Handler.info),
    (r"POST /api/repos/create", _Handler.create),
    (rf"POST /api/models/{_NAME}/preupload/main", _Handler.preupload),
    (rf"POST /{_NAME}\.git/info/lfs/objects/batch", _Handler.batch),
    (r"PUT /large/(\w+)", _Handler.store),
    (rf"POST /api/models/{_NAME}/commit/main", _Handler.commit),
    (rf"(?:GET|HEAD) /{_NAME}/resolve/\w+/(.+)", _Handler.resolve),
]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def small_hub() -> Iterator[Hub]:
    """A running hub; it is gone at the end of the ``with``."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
