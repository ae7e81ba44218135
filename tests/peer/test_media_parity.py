"""An image in a chat: what is rendered here makes a real engine write what its own chat server writes."""

from __future__ import annotations

import base64
import struct
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.settings import MediaSettings, ModelSettings
from tests.peer.reference import PEER, TOKENIZERS
from tests.peer.serving import serve_vllm
from workers.catalog import ModelProfile, load_model
from workers.prompts import generate_request, prepare

pytestmark = [
    pytest.mark.skipif(not (PEER / "bin" / "python").exists(), reason="the reference is not installed"),
    pytest.mark.skipif(not (TOKENIZERS / "qwen3").exists(), reason="there is no tokenizer"),
]

MAX_MODEL_LEN = 1024


def png(side: int, red: int) -> str:
    """A square picture, red by rows, as a data URL."""

    def block(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes((red * row % 256, 64, 200)) * side for row in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + block(b"IHDR", header) + block(b"IDAT", zlib.compress(rows)) + block(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def picture(side: int, red: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": png(side, red)}}


SAY = {"type": "text", "text": "What is it?"}
CONTENTS: dict[str, Any] = {
    "no picture": [SAY],
    "one picture": [picture(112, 1), SAY],
    "another picture": [picture(112, 7), SAY],
    "two pictures": [SAY, picture(56, 1), SAY, picture(112, 3)],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vision")
    build = [str(PEER / "bin" / "python"), str(Path(__file__).with_name("tiny_vision.py"))]
    subprocess.run([*build, str(TOKENIZERS / "qwen3"), str(folder)], check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def profile(model: Path) -> ModelProfile:
    media = MediaSettings(limits={"image": 2})
    return load_model(ModelSettings(name="m", tokenizer=str(model), max_model_len=MAX_MODEL_LEN, media=media))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[str]:
    flags = ("--limit-mm-per-prompt", '{"image": 2}')
    with serve_vllm(tmp_path_factory.mktemp("vllm"), model, "m", *flags, max_model_len=MAX_MODEL_LEN) as url:
        yield url


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_the_engine_sees_what_its_own_chat_server_sees(url: str, profile: ModelProfile, content: Any) -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 12,
        "temperature": 0,
        "return_token_ids": True,
    }
    (prompt,) = prepare(profile, "openai_chat", body).prompts
    assert len(prompt.fields.get("content_parts", ())) == sum(part["type"] == "image_url" for part in content)
    with httpx.Client(base_url=url, timeout=120) as http:
        coupled = http.post("/v1/chat/completions", json=body).raise_for_status().json()
        generated = http.post("/inference/v1/generate", json=generate_request(profile, prompt, "r"))
    generated.raise_for_status()
    ours = generated.json()
    assert ours["prompt_token_ids"] == coupled["prompt_token_ids"]
    assert ours["choices"][0]["token_ids"] == coupled["choices"][0]["token_ids"]
