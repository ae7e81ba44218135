"""Recordings of the reference's answers: what is given back, what is missing, and what they are recordings of."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.peer.recordings import FOLDER, NotRecorded, Recording, recorded_server, versions_of
from tests.peer.reference import PEER

QUESTION = {"server": {"model": "m"}, "path": "/p", "body": {"a": 1, "b": [2.5, "é🙂"]}}


def test_what_was_answered_is_given_back(tmp_path: Path) -> None:
    recorded = Recording("some", "record", tmp_path)
    answers = iter([{"status": 200, "body": "first"}, {"status": 200, "body": "second"}])
    assert recorded.answer(QUESTION, lambda: next(answers))["body"] == "first"
    assert recorded.answer(QUESTION, lambda: next(answers))["body"] == "first", "the same question is asked once"
    recorded.write({"vllm": "1"})
    replayed = Recording("some", "replay", tmp_path)
    turned = {name: QUESTION[name] for name in reversed(QUESTION)}
    assert replayed.answer(turned, dict) == {"status": 200, "body": "first"}
    assert replayed.versions == {"vllm": "1"}


def test_the_same_answers_are_the_same_file(tmp_path: Path) -> None:
    for folder, names in (("one", "ab"), ("other", "ba")):
        recording = Recording("some", "record", tmp_path / folder)
        for name in names:
            recording.answer({"body": name}, lambda name=name: {"body": name})  # type: ignore[misc]
        recording.write({})
    one, other = ((tmp_path / folder / "some.jsonl.xz").read_bytes() for folder in ("one", "other"))
    assert one == other


def test_what_was_not_recorded_is_a_failure_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="make record MODULES=tests/peer/test_some.py"):
        Recording("some", "replay", tmp_path).answer(QUESTION, dict)


def test_a_server_s_answers_are_given_back_as_they_came(tmp_path: Path) -> None:
    def post(url: str) -> tuple[int, str, str]:
        request = urllib.request.Request(f"{url}/p", json.dumps({"é": 1}).encode())
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, reply.headers["Content-Type"], reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()

    upstream = Recording("upstream", "record", tmp_path)
    streamed = {"status": 201, "type": "text/event-stream", "text": 'data: {"a": "é"}\n\ndata: [DONE]\n\n'}
    question = {"server": {"name": "m"}, "path": "/p", "body": {"é": 1}}
    upstream.answer(question, lambda: streamed)
    recorded = Recording("some", "record", tmp_path)
    with (
        recorded_server(upstream, {"name": "m"}, None) as url,
        recorded_server(recorded, {"name": "n"}, url) as recorder,
    ):
        live = post(recorder)
    recorded.write({})
    replayed = Recording("some", "replay", tmp_path)
    with recorded_server(replayed, {"name": "n"}, None) as url:
        assert post(url) == live == tuple(streamed.values())
    with recorded_server(replayed, {"name": "another"}, None) as url:
        assert post(url)[0] == 500
    assert len(replayed.missing) == 1


def test_all_answers_are_of_one_reference() -> None:
    versions = {path.name: Recording(path.name.split(".")[0], "replay").versions for path in FOLDER.iterdir()}
    assert versions
    first, *others = versions.values()
    assert first["vllm"] and all(other == first for other in others), versions


@pytest.mark.peer_live
@pytest.mark.peer_smoke
def test_the_recorded_answers_are_of_the_installed_reference() -> None:
    installed = versions_of(PEER / "bin/python")["vllm"]
    for path in FOLDER.iterdir():
        assert Recording(path.name.split(".")[0], "replay").versions["vllm"] == installed, f"{path}: run `make record`"
