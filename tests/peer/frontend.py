"""The reference's frontend, asked without opening a port. Runs with the reference's own interpreter.

    peer/bin/python frontend.py < cases.jsonl

    {"server": {"model": DIR, "tool_call_parser": "hermes"}, "path": "/v1/chat/completions/derender", "body": {...}}
    -> {"status": 200, "body": {...}}

A line without `server` goes to the one before. DIR needs config.json and the tokenizer's files; no weights are read.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import sys
from collections import OrderedDict
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")


def _load(path: str) -> Any:
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


async def _serve(server: dict[str, Any]) -> Any:
    arguments = ["--model", server["model"], "--served-model-name", server.get("name", "m")]
    if server.get("tool_call_parser"):
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", server["tool_call_parser"]]
    if server.get("reasoning_parser"):
        arguments += ["--reasoning-parser", server["reasoning_parser"]]
    arguments += server.get("flags", [])
    make_parser = _load("vllm.entrypoints.common.cli_args.make_arg_parser")
    args = make_parser(_load("vllm.utils.argparse_utils.FlexibleArgumentParser")()).parse_args(arguments)
    engine = _load("vllm.engine.arg_utils.AsyncEngineArgs").from_cli_args(args)
    model = engine.create_model_config()
    model.quantization = None
    config = _load("vllm.config.VllmConfig")(
        model_config=model, structured_outputs_config=engine.create_structured_outputs_config()
    )
    app = _load("vllm.entrypoints.launchers.app.build_app")(args, ("render",))
    await _load("vllm.entrypoints.launchers.render.app_state.init_render_app_state")(config, app.state, args)
    httpx = importlib.import_module("httpx")
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://peer", timeout=120)


MOST_SERVERS = 3
"""A server takes a few hundred megabytes; cases come sorted by server."""


async def _answer_lines(out: Any) -> None:
    clients: OrderedDict[str, Any] = OrderedDict()
    server: dict[str, Any] = {}
    for line in sys.stdin:
        case = json.loads(line)
        server = case.get("server", server)
        key = json.dumps(server, sort_keys=True)
        if key not in clients:
            clients[key] = await _serve(server)
            if len(clients) > MOST_SERVERS:
                await clients.popitem(last=False)[1].aclose()
                gc.collect()
        reply = await clients[key].post(case["path"], json=case["body"])
        answer = {"status": reply.status_code, "body": reply.json()}
        out.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the reference prints is no answer
    asyncio.run(_answer_lines(answers))
