"""A local stand-in of the hub on 127.0.0.1: the routes with which huggingface_hub makes, fills and reads repositories.

It answers what the hub answers: repositories, commits of regular and of LFS files, metadata checked as YAML, files with
their headers. It records every request, and fails on demand. Storage is in memory; there is one branch, `main`.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
import yaml

USER, TOKEN = "me", "hf_stand_in_token"
LFS_SUFFIXES = (".safetensors", ".bin", ".png")


@dataclass
class Repo:
    """A repository: who may see it, its files, and the messages of its commits."""

    private: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    card_data: dict = field(default_factory=dict)

    @property
    def sha(self) -> str:
        return hashlib.sha1(str(len(self.commits)).encode()).hexdigest()


@dataclass
class Hub:
    """The stand-in's state. `fails` says, by a request's path, which status it is answered with instead."""

    url: str
    repos: dict[str, Repo] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # LFS
    requests: list[str] = field(default_factory=list)
    fails: Callable[[str], int | None] = lambda path: None
    before: Callable[[str], None] = lambda path: None  # called with each path; may wait
    fault_headers: dict[str, str] = field(default_factory=dict)  # of what `fails` answers

    def files(self, repo: str) -> dict[str, bytes]:
        return self.repos[repo].files


@contextmanager
def fake_hub() -> Iterator[Hub]:
    """Run a stand-in while the block lasts."""

    class Handler(_Handler):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Handler.hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield Handler.hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def hub(monkeypatch) -> Iterator[Hub]:
    """A stand-in, in the place of the hub."""
    with fake_hub() as running:
        changes = {"ENDPOINT": running.url, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
        changes["HUGGINGFACE_CO_URL_TEMPLATE"] = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in (changes | {"HF_HUB_DISABLE_PROGRESS_BARS": True}).items():
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield running


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    do_GET = do_POST = do_PUT = do_HEAD  # noqa: N815

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        self.hub.before(path)
        if (status := self.hub.fails(path)) is not None:
            self._send(status, {"error": "scripted fault"}, self.hub.fault_headers)
            return
        parts = path.strip("/").split("/")
        open_to_all = path.startswith("/objects/") or path == "/api/validate-yaml"
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" and not open_to_all:
            self._send(401, {"error": "Invalid user token."})
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._validate(json.loads(body)["content"])
        elif parts[0] == "objects":
            self._object(parts[1], body)
        elif path.endswith("/info/lfs/objects/batch"):
            self._batch(json.loads(body))
        elif parts[:2] == ["api", "models"] and "/".join(parts[2:4]) in self.hub.repos:
            self._repository("/".join(parts[2:4]), parts[4:], body)
        elif "/".join(parts[:2]) in self.hub.repos and parts[2:3] == ["resolve"]:
            self._file(self.hub.repos["/".join(parts[:2])], "/".join(parts[4:]))
        else:
            self._send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})

    def _create(self, wanted: dict) -> None:
        name = f"{wanted.get('organization') or USER}/{wanted['name']}"
        status = 409 if name in self.hub.repos else 200
        self.hub.repos.setdefault(name, Repo(private=wanted.get("visibility") == "private"))
        self._send(status, {"url": f"{self.hub.url}/{name}"})

    def _validate(self, content: str) -> None:
        """A stricter check than that of the hub: known keys only, and their kinds."""
        errors = card_errors(content)
        self._send(400 if errors else 200, {"errors": [{"message": error} for error in errors], "warnings": []})

    def _repository(self, name: str, rest: list[str], body: bytes) -> None:
        repo = self.hub.repos[name]
        if not rest or rest[0] == "revision":
            siblings = [{"rfilename": file} for file in sorted(repo.files)]
            facts = {"id": name, "modelId": name, "private": repo.private, "sha": repo.sha, "siblings": siblings}
            self._send(200, facts | {"tags": [], "downloads": 0, "likes": 0, "cardData": repo.card_data})
        elif rest[0] == "tree":
            entries = [
                {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for file, data in sorted(repo.files.items())
            ]
            self._send(200, entries)
        elif rest[0] == "preupload":
            wanted = json.loads(body)["files"]
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(LFS_SUFFIXES) else "regular",
                    "shouldIgnore": False,
                }
                for file in wanted
            ]
            self._send(200, {"files": modes})
        elif rest[0] == "commit":
            self._commit(repo, name, [json.loads(line) for line in body.splitlines()])
        else:
            self._send(404, {"error": "no such route"})

    def _commit(self, repo: Repo, name: str, lines: list[dict]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                repo.commits.append(value["summary"])
            elif line["key"] == "file":
                repo.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repo.files[value["path"]] = self.hub.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                repo.files.pop(value["path"], None)
        self._send(200, {"commitUrl": f"{self.hub.url}/{name}/commit/{repo.sha}", "commitOid": repo.sha})

    def _batch(self, wanted: dict) -> None:
        objects = []
        for one in wanted["objects"]:
            known = one["oid"] in self.hub.objects
            actions = {"upload": {"href": f"{self.hub.url}/objects/{one['oid']}", "header": {}}}
            objects.append(one | ({} if known else {"actions": actions}))
        self._send(200, {"objects": objects, "transfer": "basic"})

    def _object(self, oid: str, body: bytes) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            self._send(400, {"error": "the content is not what was announced"})
            return
        self.hub.objects[oid] = body
        self._send(200, {})

    def _file(self, repo: Repo, name: str) -> None:
        if name not in repo.files:
            self._send(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            return
        data = repo.files[name]
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": repo.sha}
        self._send(200, data, headers)

    def _send(self, status: int, content: dict | list | bytes, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        with suppress(ConnectionError):  # the client gave up
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)


_KINDS = {
    "base_model": (str, list),
    "base_model_relation": (str,),
    "datasets": (list,),
    "language": (str, list),
    "library_name": (str,),
    "license": (str,),
    "license_name": (str,),
    "license_link": (str,),
    "model-index": (list,),
    "model_name": (str,),
    "pipeline_tag": (str,),
    "tags": (list,),
}


def card_errors(content: str) -> list[str]:
    """What is wrong with a card's metadata."""
    before, mark, rest = content.partition("---\n")
    block, end, _ = rest.partition("\n---\n")
    if before or not mark or not end:
        return ["the card does not begin with a block of metadata"]
    try:
        data = yaml.safe_load(block)
    except yaml.YAMLError as error:
        return [f"the metadata is not YAML: {error}"]
    errors = [f'"{name}" is not allowed' for name in data if name not in _KINDS]
    errors += [
        f'"{name}" must not be {value!r}'
        for name, value in data.items()
        if name in _KINDS and not isinstance(value, _KINDS[name])
    ]
    for model in data.get("model-index", ()):
        for result in model["results"]:
            errors += [f"a result lacks {part}" for part in ("task", "dataset", "metrics") if not result.get(part)]
            errors += ["a metric lacks its value" for metric in result["metrics"] if metric.get("value") is None]
    return errors
