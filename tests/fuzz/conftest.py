"""A small yard of real processes to send anything to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import RedisServer
from tests.fuzz.bodies import MODEL
from tests.integration.harness import Yard, scripted_model, write_tokenizer


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer) -> Iterator[Yard]:
    folder = tmp_path_factory.mktemp("fuzz")
    model = scripted_model(MODEL, write_tokenizer(folder / "tokenizer"), chunk_tokens=3)
    model |= {"tool_parser": "hermes", "reasoning_parser": "qwen3", "max_output_tokens": 64}
    yard = Yard(folder, redis_server, [model], limits={"max_body_bytes": 1_000_000, "request_timeout_s": 60.0})
    yard.start_all(cpu=1, gpu=1)
    try:
        yard.await_ready()
        yield yard
    finally:
        yard.stop()
