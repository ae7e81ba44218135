"""The demo: a chat and a streamed chat with OpenAI's client, and a job with the time that each stage took."""

from __future__ import annotations

import time
from typing import Any

import click

from api.cli.client import Client

QUESTION = "Name three animals."
STREAMED = "Name three fruits."
JOB = "How many days are in a week?"


def _show(title: str, question: str, answer: str, timing: str) -> None:
    click.echo(f"\n{title}\n  user       {question}\n  assistant  {answer}\n  time       {timing}")


def run_demo(url: str, model: str) -> tuple[int, int]:
    """Send three requests to the API; return how many passed, and how many there were."""
    checks = (_chat, _streamed_chat, _job)
    passed = 0
    for check in checks:
        try:
            check(url, model)
            passed += 1
        except Exception as error:  # noqa: BLE001 - the demo reports a failure and continues
            click.echo(f"\n{check.__name__.strip('_')}: failed: {error}")
    return passed, len(checks)


def _openai(url: str) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def _ask(question: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 48}


def _chat(url: str, model: str) -> None:
    began = time.perf_counter()
    completion = _openai(url).chat.completions.create(model=model, **_ask(QUESTION))
    took_s = time.perf_counter() - began
    answer = completion.choices[0].message.content
    usage = completion.usage
    if not answer or completion.choices[0].finish_reason not in ("stop", "length") or not usage.completion_tokens:
        raise RuntimeError(f"the answer is empty or incomplete: {completion!r}")
    _show(
        "1. A chat completion",
        QUESTION,
        answer,
        f"{took_s:.2f} s for {usage.prompt_tokens} prompt and {usage.completion_tokens} completion tokens",
    )


def _streamed_chat(url: str, model: str) -> None:
    began = time.perf_counter()
    first_s = 0.0
    chunks: list[str] = []
    stream = _openai(url).chat.completions.create(model=model, stream=True, **_ask(STREAMED))
    finish_reason = None
    for chunk in stream:
        choice = chunk.choices[0]
        if choice.delta.content:
            first_s = first_s or time.perf_counter() - began
            chunks.append(choice.delta.content)
        finish_reason = choice.finish_reason or finish_reason
    took_s = time.perf_counter() - began
    answer = "".join(chunks)
    if finish_reason is None or len(chunks) < 2:
        raise RuntimeError(f"the stream was cut off: {answer!r}")
    _show(
        "2. A streamed chat completion",
        STREAMED,
        answer,
        f"first token after {first_s:.2f} s, {len(chunks)} chunks in {took_s:.2f} s",
    )


def _job(url: str, model: str) -> None:
    client = Client(url, None)
    body = {"model": model, **_ask(JOB)}
    job = client.request("POST", "/v1/jobs", {"endpoint": "/v1/chat/completions", "body": body})
    click.echo(f"\n3. An asynchronous job\n  job        {job['id']} ({job['status']})")
    for event in client.stream("GET", job["links"]["events"]):
        if event.name == "status":
            click.echo(f"  event {event.id:>2}   {event.data['stage']}: {event.data['state']}")
        else:
            click.echo(f"  event {event.id:>2}   {event.name}")
    job = client.request("GET", job["links"]["self"])
    result = client.request("GET", job["links"]["result"])
    answer = result["choices"][0]["message"]["content"]
    stages = ", ".join(
        f"{name} {1000 * (stage['ended_at'] - stage['started_at']):.0f} ms "
        f"(queued {1000 * max(0.0, stage['started_at'] - stage['queued_at']):.0f} ms)"
        for name, stage in job["stages"].items()
        if stage["ended_at"]
    )
    click.echo(f"  user       {JOB}\n  assistant  {answer}\n  time       {stages}")
    if job["status"] != "succeeded" or not answer:
        raise RuntimeError(f"the job is {job['status']}, its answer is {answer!r}")
