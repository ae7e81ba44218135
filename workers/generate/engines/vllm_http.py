"""vLLM as a token engine: `POST /inference/v1/generate` (0.33; `vllm serve --enable-scale-out` or `--tokens-only`).

    {"request_id": "job_1", "token_ids": [1, 4093, 198], "sampling_params": {"temperature": 0}, "stream": true,
     "stream_options": {"include_usage": true}}
    data: {"request_id": "generate-tokens-job_1", "output_mode": "tokens", "choices": [{"index": 0, "token_ids": [57],
           "logprobs": {"content": [{"token_id": 57, "logprob": -0.1, "rank": 1, "top_logprobs": [...]}]},
           "finish_reason": null, "stop_reason": null}]}
    data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": null}}
    data: [DONE]

Closing a request's connection aborts it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from tasks.errors import EngineFailed
from tasks.protocol.base import JsonObject
from tasks.protocol.tokens import GenerateRequest, TokenChunk
from tasks.protocol.vllm_generate import EXTRA_OF_ANSWER, chunk_from_choice, present, prompt_counts
from tasks.settings import EngineSettings
from workers.generate.engines.base import Capabilities, Health, choice_count, ensure_whole
from workers.generate.engines.http import HttpEngine

PATH = "/inference/v1/generate"
PASSED_ON = (
    "features",
    "content_parts",
    "reasoning_ended",
    "reasoning_parser_kwargs",
    "cache_salt",
    "kv_transfer_params",
    "ec_transfer_params",
    "return_token_ids",
)
_STRUCTURED = frozenset({"json", "regex", "choice", "grammar", "json_object", "structural_tag"})


class VllmEngine(HttpEngine):
    """Options: `send_stop` (false for `--tokens-only` servers, which refuse stop strings) and `send_priority`
    (true for servers with `--scheduling-policy priority`; others refuse a priority)."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        options = dict(settings.options)
        self._send_stop = bool(options.pop("send_stop", True))
        self._send_priority = bool(options.pop("send_priority", False))
        if options:
            raise ValueError(f"the vllm engine has no option {', '.join(sorted(options))}")
        self.capabilities = Capabilities(
            stops_on_strings=self._send_stop,
            priority=self._send_priority,
            structured_outputs=_STRUCTURED,
            media=True,
        )

    async def generate(self, request: GenerateRequest, *, stream: bool) -> AsyncGenerator[TokenChunk, None]:
        choices = choice_count(request)
        chunks = self._streamed(request, choices) if stream else self._at_once(request)
        async with aclosing(ensure_whole(chunks, choices)) as whole:
            async for chunk in whole:
                yield chunk

    async def health(self) -> Health:
        return await self.probe("/health")

    def body(self, request: GenerateRequest, *, stream: bool) -> JsonObject:
        """The request as vLLM reads it; for fields that are not set, the server's defaults apply."""
        params = dict(request.sampling_params)
        if not self._send_stop:
            for name in ("stop", "include_stop_str_in_output"):
                params.pop(name, None)
        body: JsonObject = {"token_ids": request.token_ids, "sampling_params": params, "stream": stream}
        if request.request_id:
            body["request_id"] = request.request_id
        if self.settings.model is not None:
            body["model"] = self.settings.model
        if stream:
            body["stream_options"] = {"include_usage": True}
        if self._send_priority and request.priority:
            body["priority"] = request.priority
        for name in PASSED_ON:
            value = getattr(request, name)
            if value is not None:
                body[name] = value
        return body

    def _exchange(self, request: GenerateRequest, *, stream: bool) -> AsyncGenerator[JsonObject, None]:
        headers = {"X-Request-Id": request.request_id} if request.request_id else None
        return self.exchange(PATH, self.body(request, stream=stream), stream=stream, headers=headers)

    async def _at_once(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        async with aclosing(self._exchange(request, stream=False)) as answers:
            async for answer in answers:
                _check_mode(answer)
                extra = present(answer, EXTRA_OF_ANSWER)
                for choice in answer["choices"]:
                    prompt_tokens, cached = prompt_counts(answer, len(request.token_ids))
                    yield chunk_from_choice(choice, extra=extra, prompt_tokens=prompt_tokens, cached_tokens=cached)
                    extra = {}

    async def _streamed(self, request: GenerateRequest, choices: int) -> AsyncGenerator[TokenChunk, None]:
        """Yields chunks as they arrive, except that the very last one waits for the usage that follows it."""
        prompt_tokens = len(request.token_ids)
        unfinished = choices
        last: tuple[JsonObject, JsonObject] | None = None
        usage: JsonObject = {}
        async with aclosing(self._exchange(request, stream=True)) as events:
            async for event in events:
                _check_mode(event)
                extra = present(event, EXTRA_OF_ANSWER)
                for choice in event.get("choices") or ():
                    if last is not None:
                        raise EngineFailed("the engine sent another chunk after the end of every choice")
                    finished = choice.get("finish_reason") is not None
                    unfinished -= finished
                    if finished and unfinished == 0:
                        last = choice, extra
                    else:
                        yield chunk_from_choice(choice, extra=extra, prompt_tokens=prompt_tokens if finished else None)
                    extra = {}
                if event.get("usage"):
                    usage = event
                    if last is not None:
                        last = last[0], {**last[1], **extra}
        if last is not None:
            prompt_tokens, cached = prompt_counts(usage, prompt_tokens)
            yield chunk_from_choice(last[0], extra=last[1], prompt_tokens=prompt_tokens, cached_tokens=cached)


def _check_mode(answer: JsonObject) -> None:
    mode = answer.get("output_mode", "tokens")
    if mode != "tokens":
        raise EngineFailed(f"the engine answered in mode {mode!r} instead of 'tokens'")
