"""The reference's frontend, asked line by line in a process of its own (`frontend.py`), and where it is installed.

Tests ask it by way of a recording (`recordings.py`), which may have the answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.protocol.base import JsonObject
from tests.peer.recordings import Recording

PEER = Path(os.environ.get("TOKENYARD_PEER", "~/.cache/vllm-peer")).expanduser()
TOKENIZERS = Path(os.environ.get("TOKENYARD_REAL_TOKENIZERS", "~/.cache/real-tokenizers")).expanduser()
DERENDER = "/v1/chat/completions/derender"


MOST_SERVERS = 16
"""Servers that one process builds: it does not get back all of the memory of those that it has let go."""


class Frontend:
    """Answers for any model folder and flags; started again when it dies, or has built many servers."""

    def __init__(self, recording: Recording | None = None) -> None:
        self._recording = recording
        self._process: subprocess.Popen[str] | None = None
        self._built: set[str] = set()

    @property
    def asks(self) -> bool:
        """Whether the reference itself answers, which needs the model's folder."""
        return self._recording is None or self._recording.asks

    def ask(self, server: JsonObject, body: JsonObject, path: str = DERENDER) -> JsonObject:
        """`{"status": 200, "body": {...}}`; status 0 where there is no such server."""
        if self._recording is None:
            return self._ask(server, body, path)
        # Where a model's folder is differs between machines, and from run to run.
        question = {"server": {**server, "model": Path(server["model"]).name}, "path": path, "body": body}
        return self._recording.answer(question, lambda: self._ask(server, body, path))

    def _ask(self, server: JsonObject, body: JsonObject, path: str) -> JsonObject:
        key = json.dumps(server, sort_keys=True)
        if key not in self._built and len(self._built) == MOST_SERVERS:
            self.close()
        self._built.add(key)
        if self._process is None:
            self._process = subprocess.Popen(
                [str(PEER / "bin/python"), str(Path(__file__).with_name("frontend.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "TIKTOKEN_ENCODINGS_BASE": str(TOKENIZERS / "tiktoken"),
                    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
                },
                text=True,
            )
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"server": server, "path": path, "body": body}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self.close()
            return {"status": 0, "body": "the reference cannot be built with this"}
        answer: JsonObject = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process and self._process.stdin and self._process.stdout:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.wait(30)
            self._process.stdout.close()
        self._process = None
        self._built.clear()


@contextmanager
def started(recording: Recording | None = None) -> Iterator[Frontend]:
    """A frontend that ends with the block."""
    frontend = Frontend(recording)
    try:
        yield frontend
    finally:
        frontend.close()


def message_meaning(message: JsonObject) -> JsonObject:
    """What a chat message says: `reasoning`, `text`, and `calls` as (name, arguments)."""
    calls = [
        (call["function"]["name"], _arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    return {"reasoning": message.get("reasoning") or "", "text": message.get("content") or "", "calls": calls}


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def derender_whole(
    frontend: Frontend, server: JsonObject, body: JsonObject, ids: list[int], reason: str
) -> tuple[JsonObject, str] | str:
    """The meaning and finish reason of the reference's one-shot answer, or why there is none."""
    choice = {"index": 0, "finish_reason": reason, "token_ids": ids}
    response = {"request_id": "r", "model": "m", "created": 1, "choices": [choice]}
    answer = frontend.ask(server, {**body, "generate_response": response})
    if answer["status"] != 200:
        return f"{answer['status']}: {answer['body']}"
    answered = answer["body"]["choices"][0]
    return message_meaning(answered["message"]), answered["finish_reason"]


def derender_streamed(
    frontend: Frontend, server: JsonObject, body: JsonObject, ids: list[int], reason: str
) -> tuple[JsonObject, str] | str:
    """The same of the reference's deltas of one token a chunk, put together."""
    out: JsonObject = {"reasoning": "", "content": "", "tool_calls": []}
    state: Any = None
    finished = ""
    for at, token_id in enumerate(ids):
        last = at == len(ids) - 1
        choice = {"index": 0, "token_ids": [token_id], "finish_reason": reason if last else None}
        chunk = {"request_id": "r", "model": "m", "created": 1, "choices": [choice]}
        asked = {**body, "stream": True, "generate_chunk": chunk}
        if state is not None:
            asked["stream_state"] = state
        answer = frontend.ask(server, asked)
        if answer["status"] != 200:
            return f"{answer['status']}: {answer['body']}"
        state = answer["body"]["stream_state"]
        for answered in (answer["body"].get("chunk") or {}).get("choices", ()):
            delta = answered["delta"]
            out["reasoning"] += delta.get("reasoning") or ""
            out["content"] += delta.get("content") or ""
            finished = answered.get("finish_reason") or finished
            for call in delta.get("tool_calls") or ():
                while len(out["tool_calls"]) <= call["index"]:
                    out["tool_calls"].append({"function": {"name": "", "arguments": ""}})
                function = out["tool_calls"][call["index"]]["function"]
                given = call.get("function") or {}
                function["name"] += given.get("name") or ""
                function["arguments"] += given.get("arguments") or ""
    return message_meaning(out), finished


def spaced(meant: Any) -> Any:
    """The same with white space compared loosely: when whole, the reference strips it around calls and reasoning."""
    if not isinstance(meant, tuple):
        return meant
    said, reason = meant
    return {**said, **{key: " ".join(said[key].split()) for key in ("text", "reasoning")}}, reason
