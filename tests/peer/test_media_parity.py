"""Media in a rendered request, as the reference's token endpoint reads it.

The whole way needs an engine with eyes; this asks the reference's own model of the request, and its list of kinds.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tasks.protocol.base import JsonObject
from tasks.settings import MediaSettings, ModelSettings
from tests.peer.recordings import Recording
from tests.peer.reference import PEER, TOKENIZERS
from workers.models.catalog import load_model
from workers.render.prompts import generate_request, prepare

pytestmark = pytest.mark.skipif(not (TOKENIZERS / "glm-4.5v").exists(), reason="there is no tokenizer")

READ = """
import inspect, json, sys
from vllm.entrypoints.scale_out.token_in_token_out import serving
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
request = GenerateRequest.model_validate(json.load(sys.stdin))
source = inspect.getsource(serving)
print(json.dumps([[part, f'"{part["type"]}"' in source] for part in request.content_parts]))
"""


def read_by_the_reference(request: JsonObject) -> JsonObject:
    asked = [str(PEER / "bin" / "python"), "-c", READ]
    read = subprocess.run(asked, input=json.dumps(request), capture_output=True, text=True, timeout=300, check=True)
    return {"parts": json.loads(read.stdout.splitlines()[-1])}


def test_the_reference_reads_our_content_parts(recording: Recording) -> None:
    media = MediaSettings(limits={"image": 2, "video": 1, "audio": 1})
    settings = ModelSettings(
        name="m",
        tokenizer=str(TOKENIZERS / "glm-4.5v"),
        tool_parser="none",
        reasoning_parser="none",
        max_model_len=1024,
        media=media,
    )
    profile = load_model(settings)
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}, "uuid": "b"},
        {"type": "video_url", "video_url": {"url": "https://example.com/c.mp4"}},
    ]
    (prompt,) = prepare(profile, "openai_chat", {"messages": [{"role": "user", "content": parts}]}).prompts
    image, video = (profile.tokenizer.id_of(token) for token in ("<|image|>", "<|video|>"))
    assert [i for i in prompt.token_ids if i in (image, video)] == [image, image, video], "one placeholder for each"
    request = generate_request(profile, prompt, "r")
    taken = recording.answer({"script": READ, "request": request}, lambda: read_by_the_reference(request))["parts"]
    assert [part for part, _ in taken] == prompt.fields["content_parts"]
    assert all(known for _, known in taken)
