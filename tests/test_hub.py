"""Models of the hub, from a small hub of our own on the loopback: cache, revisions, resumed and damaged downloads."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import kerastf
from kerastf import convert
from kerastf.convert import hub
from kerastf.errors import FileFormatError

COMMITS = {"main": "a" * 40, "v1": "b" * 40}
SIZES = {"vocab_size": 40, "max_length": 12, "dim": 16, "num_layers": 1, "num_heads": 2}


class Hub(ThreadingHTTPServer):
    """Serves the files of a folder as the repository `we/small`."""

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {p.name: p.read_bytes() for p in folder.iterdir()}
        self.files["pytorch_model.bin"] = b"never fetched"
        self.cut_after = None  # bytes after which a download breaks off, once
        self.spoil = False
        self.asked = []

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        server, path = self.server, self.path.partition("?")[0]
        server.asked.append((self.command, path, self.headers.get("Range")))
        if path.startswith("/api/models/we/small"):
            commit = COMMITS.get(
                path.rpartition("/")[2], next((c for c in COMMITS.values() if c in path), COMMITS["main"])
            )
            siblings = [{"rfilename": n, "size": len(b)} for n, b in server.files.items()]
            if "/tree/" in path:
                return self.send(
                    [{"type": "file", "path": n, "size": len(b), "oid": "0" * 40} for n, b in server.files.items()]
                )
            return self.send({"id": "we/small", "sha": commit, "siblings": siblings, "private": False, "tags": []})
        commit, _, name = path.removeprefix("/we/small/resolve/").partition("/")
        data = server.files.get(name)
        if data is None:
            return self.send({}, status=404, headers={"X-Error-Code": "EntryNotFound"})
        etag = hashlib.sha256(data).hexdigest() if name.endswith(".safetensors") else hashlib.sha1(data).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMITS.get(commit, commit), "Accept-Ranges": "bytes"}
        if server.spoil and name.endswith(".safetensors"):
            data = data[:-1] + bytes([data[-1] ^ 1])
        start = 0
        if self.headers.get("Range"):
            start = int(self.headers["Range"].removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.send_response(206 if start else 200)
        for key, value in {**headers, "Content-Length": str(len(data) - start)}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            if server.cut_after is not None and name.endswith(".safetensors"):
                self.wfile.write(data[start : start + server.cut_after])
                self.wfile.flush()
                server.cut_after = None
                self.close_connection = True
                return None
            self.wfile.write(data[start:])
        return None

    def send(self, value, status=200, headers=None):
        text = json.dumps(value).encode()
        self.send_response(status)
        for key, item in {
            **(headers or {}),
            "Content-Type": "application/json",
            "Content-Length": str(len(text)),
        }.items():
            self.send_header(key, item)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hub") / "small"
    convert.save(kerastf.create_model("gpt", **SIZES), path)
    return path


def fetch(source, home, address=None, **environment):
    """The folder that a process of its own fetched, or its error: the library reads its settings when it is imported."""
    code = (  # the file alone: the package would import Keras
        "import importlib.util, sys\nfrom kerastf.errors import FileFormatError\n"
        "spec = importlib.util.spec_from_file_location('hub', sys.argv[2])\n"
        "hub = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(hub)\n"
        "try:\n    print(hub.fetch(sys.argv[1]))\nexcept FileFormatError as error:\n    print('refused:', error)\n"
    )
    settings = {"HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
    settings |= {"HF_ENDPOINT": address} if address else {"HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", code, source, hub.__file__],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_fetched_once_and_found_again(folder, tmp_path):
    with Hub(folder) as server:
        path = fetch("hf:we/small", tmp_path, server.address)
        assert sorted(os.listdir(path)) == ["config.json", "model.safetensors"]  # what can run code stays there
        assert kerastf.create_model("gpt", weights=path).count_params() > 0
        first = len([a for a in server.asked if a[0] == "GET" and a[1].endswith(".safetensors")])
        assert fetch("hf:we/small", tmp_path, server.address) == path
        assert len([a for a in server.asked if a[0] == "GET" and a[1].endswith(".safetensors")]) == first == 1
    assert fetch("hf:we/small", tmp_path, HF_HUB_OFFLINE="1") == path


def test_a_revision_is_pinned(folder, tmp_path):
    with Hub(folder) as server:
        path = fetch("hf:we/small@v1", tmp_path, server.address)
        assert COMMITS["v1"] in path and COMMITS["main"] not in path
        asked = len(server.asked)
        assert fetch(f"hf:we/small@{COMMITS['v1']}", tmp_path, server.address) == path
        assert len(server.asked) == asked  # a commit never changes


def test_a_download_that_breaks_off_goes_on(folder, tmp_path):
    whole = bytes(25 * 2**20)  # the library keeps what came in parts of ten
    with Hub(folder) as server:
        server.files["model.safetensors"] = whole
        server.cut_after = 15 * 2**20
        path = fetch("hf:we/small", tmp_path, server.address)
        if path.startswith("refused:"):
            path = fetch("hf:we/small", tmp_path, server.address)
        ranges = [a[2] for a in server.asked if a[0] == "GET" and a[1].endswith(".safetensors")]
    with open(os.path.join(path, "model.safetensors"), "rb") as file:
        assert file.read() == whole
    assert any(r and int(r.removeprefix("bytes=").partition("-")[0]) > 0 for r in ranges)


def test_damage_on_the_way_is_noticed(folder, tmp_path):
    with Hub(folder) as server:
        server.spoil = True
        told = fetch("hf:we/small", tmp_path, server.address)
        assert told.startswith("refused: model.safetensors came damaged: its checksum is not the hub's.")
        server.spoil = False
        assert not fetch("hf:we/small", tmp_path, server.address).startswith("refused")


def test_offline(tmp_path):
    told = fetch("hf:we/small", tmp_path, HF_HUB_OFFLINE="1")
    assert told.startswith("refused: hf:we/small is not in the cache and cannot be fetched: ")
    assert told.endswith("Give a folder instead, or try again online.")


@pytest.mark.parametrize("source", ["hf:", "hf:a/b/c", "hf:../x", "hf:we/small@a b", "hf:x@../y?"])
def test_names_that_are_none(source):
    with pytest.raises(FileFormatError):
        hub.fetch(source)


def test_no_such_folder():
    with pytest.raises(FileFormatError, match="There is no folder nowhere. From the hub: 'hf:NAME'"):
        hub.fetch("nowhere")
