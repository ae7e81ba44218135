"""An engine without a GPU: llama.cpp's server in this process, from the `xllamacpp` wheel.

    $ python -m workers.generate.engines.embedded --gguf SmolLM2-135M-Instruct.Q4_1.gguf --port 8081
    engine: ready at http://127.0.0.1:8081 (SmolLM2-135M-Instruct.Q4_1, 4 slots of 4096 tokens, 2 threads)

It serves until SIGTERM or SIGINT, or on Linux with `--die-with-parent` until its parent ends. Its API is that of
`llama-server`.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
BATCH_TOKENS = 512
PROMPT_CACHE_MIB = 256


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """`context` is the number of tokens of one slot; `parallel` slots are decoded together."""

    gguf: Path
    host: str = "127.0.0.1"
    port: int = 8081
    parallel: int = 4
    context: int = 4096
    threads: int = 0
    """0 means one for each core."""
    die_with_parent: bool = False


def start_server(settings: EmbeddedSettings) -> Any:
    """Loads the model and listens; returns the server, which stops when it is deleted.

    Raises:
        RuntimeError: the wheel is missing, the file is not a model, or the port is taken.
    """
    try:
        import xllamacpp
    except ImportError as error:
        raise RuntimeError(
            "the embedded engine needs the package xllamacpp: pip install 'tokenyard[embedded]'"
        ) from error
    if not settings.gguf.is_file():
        raise RuntimeError(f"there is no model file {settings.gguf}: check --gguf")
    params = xllamacpp.CommonParams()
    params.model.path = str(settings.gguf)
    params.model_alias = {settings.gguf.stem}
    params.hostnames = [settings.host]
    params.port = settings.port
    params.n_parallel = settings.parallel
    params.n_ctx = settings.parallel * settings.context
    # Each slot has its own part of the context: a long request cannot push another one out.
    params.kv_unified = False
    params.n_batch = BATCH_TOKENS
    params.n_ubatch = BATCH_TOKENS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = count_threads(settings.threads)
    params.n_threads_http = settings.parallel * 2 + 4
    params.cont_batching = True
    params.cache_prompt = True
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.n_gpu_layers = 0
    params.ui = False
    params.enable_chat_template = False
    params.use_jinja = False
    params.verbosity = 1
    return xllamacpp.Server(params)


def count_threads(threads: int) -> int:
    """The number of threads to decode with: `threads`, or if that is 0, one for each core that this process may use."""
    return threads or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def die_with_parent() -> None:
    """Asks Linux for a SIGTERM when the parent (its thread that started us) ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def parse_arguments(arguments: list[str] | None = None) -> EmbeddedSettings:
    parser = argparse.ArgumentParser(
        prog="python -m workers.generate.engines.embedded", description="Serve a GGUF file."
    )
    parser.add_argument("--gguf", type=Path, required=True, help="the model file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--parallel", type=int, default=4, help="requests decoded together (default: 4)")
    parser.add_argument("--context", type=int, default=4096, help="tokens of each of them (default: 4096)")
    parser.add_argument("--threads", type=int, default=0, help="default: one for each core")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the starting process ends (Linux)")
    return EmbeddedSettings(**vars(parser.parse_args(arguments)))


def main() -> int:
    settings = parse_arguments()
    if settings.die_with_parent:
        die_with_parent()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        server = start_server(settings)
    except RuntimeError as error:
        print(f"engine: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(  # noqa: T201
        f"engine: ready at {server.listening_address} ({settings.gguf.stem}, {settings.parallel} slots of "
        f"{settings.context} tokens, {count_threads(settings.threads)} threads)",
        flush=True,
    )
    stopped.wait()
    # A normal exit would wait for the requests in flight, which nobody needs any more.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
