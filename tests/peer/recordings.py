"""What the reference answered, kept as data: `make record` asks it once, and every run compares with its answers.

A question is all that an answer depends on: the server's settings, the path, the body. `recorded/NAME.jsonl.xz` has,
for the test module `test_NAME`, a line with the versions that answered, and a line for each question: its digest and
the answer. `--peer` says who answers: the recording (`replay`), the reference (`live`, by `make peer`), or the
reference, to be written down (`record`).
"""

from __future__ import annotations

import hashlib
import json
import lzma
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from tasks.protocol.base import JsonObject

FOLDER = Path(__file__).with_name("recorded")
ANSWER_TIMEOUT_S = 300
VERSIONS = ("vllm", "transformers", "tokenizers", "mistral-common", "xgrammar")
"""Packages of the reference that have a say in its answers."""

Mode = Literal["replay", "live", "record"]


class NotRecorded(AssertionError):
    """The reference has not been asked this yet."""

    def __init__(self, recording: str, question: JsonObject) -> None:
        asked = json.dumps(question, ensure_ascii=False, sort_keys=True)
        super().__init__(
            f"the reference's answer is not recorded: run `make record MODULES=tests/peer/test_{recording}.py`, "
            f"where it is installed. It was asked: {asked[:500]}"
        )


class Recording:
    """The answers of the reference to one test module, or the way to them."""

    def __init__(self, name: str, mode: Mode, folder: Path = FOLDER) -> None:
        self.name, self.mode = name, mode
        self.versions: JsonObject = {}
        self.missing: list[NotRecorded] = []
        """Questions that came where nothing could be raised."""
        self._path = folder / f"{name}.jsonl.xz"
        self._answers: dict[str, str] = {}
        if mode == "replay" and self._path.exists():
            head, *lines = lzma.decompress(self._path.read_bytes()).decode().splitlines()
            self.versions = json.loads(head)
            self._answers = dict(line.split(" ", 1) for line in lines)

    @property
    def asks(self) -> bool:
        """Whether the reference itself answers."""
        return self.mode != "replay"

    def answer(self, question: JsonObject, ask: Callable[[], JsonObject]) -> JsonObject:
        """The answer to a question; a question that comes twice is recorded once, with its first answer."""
        if self.mode == "live":
            return ask()
        key = _digest(question)
        if key not in self._answers:
            if self.mode == "replay":
                raise NotRecorded(self.name, question)
            self._answers[key] = json.dumps(ask(), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        answer: JsonObject = json.loads(self._answers[key])
        return answer

    def write(self, versions: JsonObject) -> None:
        """Write what was asked, the same bytes for the same answers; nothing if nothing was."""
        if not self._answers:
            return
        lines = [json.dumps(versions, sort_keys=True)]
        # Answers that are like each other come together, which a compressor likes.
        lines += [f"{key} {answer}" for key, answer in sorted(self._answers.items(), key=lambda row: (row[1], row[0]))]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9))


def _digest(question: JsonObject) -> str:
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]


def versions_of(python: Path) -> JsonObject:
    """The versions that an interpreter finds."""
    script = "import json, sys; from importlib.metadata import version; print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
    told = subprocess.run([python, "-c", script, *VERSIONS], capture_output=True, text=True, check=True, timeout=60)
    versions: JsonObject = json.loads(told.stdout)
    return versions


@contextmanager
def recorded_server(recording: Recording, server: JsonObject, upstream: str | None) -> Iterator[str]:
    """The URL of a server that answers from a recording, or asks the one at `upstream` and writes down what it says."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            content = self.rfile.read(size)
            question = {"server": server, "path": self.path, "body": json.loads(content) if content else None}
            try:
                answer = recording.answer(question, lambda: _ask(f"{upstream}{self.path}", content))
            except NotRecorded as error:
                recording.missing.append(error)
                answer = {"status": 500, "type": "text/plain", "text": str(error)}
            text = answer["text"].encode()
            self.send_response(answer["status"])
            self.send_header("Content-Type", answer["type"])
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = answer

        def log_message(self, *_: Any) -> None:
            """Tests are told what is missing, and nothing else."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


def _ask(url: str, content: bytes) -> JsonObject:
    request = urllib.request.Request(url, content or None, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as reply:
            status, headers, text = reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            status, headers, text = error.code, error.headers, error.read()
    return {"status": status, "type": headers.get("Content-Type", ""), "text": text.decode()}
