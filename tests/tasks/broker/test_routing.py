"""Messages equal those that the installed Celery would push, and show only counts and names."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import redis
from celery import Celery

from tasks.broker.app import create_app, gpu_queues
from tasks.broker.routing import Router, queue_for
from tasks.ledger.redis_store import RedisStore
from tasks.pipeline import Pipeline, Submission
from tasks.specs import (
    DERENDER,
    DERENDER_ALONE_TASK,
    DERENDER_TASK,
    FOLLOW_TASK,
    GENERATE,
    GENERATE_TASK,
    RENDER,
    RENDER_TASK,
    spec_for,
)
from tests.conftest import RedisServer, quick_settings

PROMPT = "the user's secret"


@pytest.fixture
def app(redis_server: RedisServer) -> Celery:
    app = create_app(quick_settings(redis_server.url), queues=["render", "generate.tiny.interactive"])

    def generate(job_id: str) -> None: ...

    app.task(generate, name=GENERATE_TASK.name)
    return app


@pytest.fixture
def client(redis_server: RedisServer) -> Any:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushdb()
        yield client


def decoded(raw: bytes) -> tuple[dict[str, Any], Any]:
    envelope = json.loads(raw)
    return envelope, json.loads(base64.b64decode(envelope["body"]))


@pytest.mark.parametrize("sent_by", ["apply_async", "send_task"])
def test_a_message_is_what_celery_pushes(app: Celery, client: Any, sent_by: str) -> None:
    options = {"queue": "generate.tiny.interactive", "shadow": "generate[tiny]", "ignore_result": True}
    with app.connection_for_write() as connection:
        if sent_by == "apply_async":
            app.tasks[GENERATE_TASK.name].apply_async(("job_1",), connection=connection, **options)
        else:
            app.send_task(GENERATE_TASK.name, ("job_1",), connection=connection, **options)
    theirs, their_body = decoded(client.rpop("generate.tiny.interactive"))
    message = Router(app).message("job_1", GENERATE_TASK, model="tiny", job_class="interactive")
    assert message.queue == "generate.tiny.interactive"
    ours, our_body = decoded(message.body)
    assert (
        our_body == their_body == [["job_1"], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    )
    assert ours.keys() == theirs.keys()
    assert (ours["content-type"], ours["content-encoding"]) == (theirs["content-type"], theirs["content-encoding"])
    assert ours["headers"].keys() - theirs["headers"].keys() == {"job", "stage"}
    assert theirs["headers"].keys() <= ours["headers"].keys()
    assert ours["properties"].keys() == theirs["properties"].keys()
    own = {"id", "root_id", "origin", "argsrepr", "kwargsrepr"}
    for key in theirs["headers"].keys() - own:
        assert ours["headers"][key] == theirs["headers"][key], key
    for key in theirs["properties"].keys() - {"correlation_id", "reply_to", "delivery_tag"}:
        assert ours["properties"][key] == theirs["properties"][key], key
    assert ours["properties"]["correlation_id"] == ours["headers"]["id"] == ours["headers"]["root_id"]


def test_each_message_is_another_delivery(app: Celery) -> None:
    router = Router(app)
    made = [json.loads(router.message("job_1", RENDER_TASK, model="tiny", job_class="batch").body) for _ in range(2)]
    assert made[0]["headers"]["id"] != made[1]["headers"]["id"]
    assert made[0]["properties"]["delivery_tag"] != made[1]["properties"]["delivery_tag"]


def test_what_is_shown_is_names_and_counts(app: Celery) -> None:
    router = Router(app)
    headers = json.loads(router.message("job_1", GENERATE_TASK, model="tiny", job_class="batch", prompt_tokens=7).body)[
        "headers"
    ]
    assert headers["argsrepr"] == "(job=job_1, model=tiny, prompt_tokens=7)"
    assert headers["kwargsrepr"] == "" and headers["shadow"] == "generate[tiny]"
    headers = json.loads(router.message("job_1", RENDER_TASK, model="tiny", job_class="batch").body)["headers"]
    assert headers["argsrepr"] == "(job=job_1, model=tiny)"


async def test_the_prompt_is_in_no_message(redis_server: RedisServer, client: Any) -> None:
    settings = quick_settings(redis_server.url)
    store = RedisStore(settings)
    pipeline = Pipeline(settings, create_app(settings), store)
    body = json.dumps({"messages": [{"role": "user", "content": PROMPT}]}).encode()
    job_id = await pipeline.submit(Submission("/v1/chat/completions", "tiny", body, False, ("render",)))
    (raw,) = client.lrange("render", 0, -1)
    envelope, arguments = decoded(raw)
    assert arguments[0] == [job_id]
    assert PROMPT not in json.dumps(envelope) and PROMPT not in json.dumps(arguments)
    assert await store.payload(job_id, "request") == body
    await store.close()


def test_every_stage_has_its_queue_and_its_task(app: Celery) -> None:
    assert queue_for(RENDER, "m", "batch") == "render" and queue_for(DERENDER, "m", "batch") == "derender"
    assert queue_for(GENERATE, "org/m", "batch") == "generate.org/m.batch"
    router = Router(app)
    for followed, spec in ((False, DERENDER_TASK), (True, FOLLOW_TASK)):
        assert spec_for(DERENDER, (RENDER, GENERATE, DERENDER), followed=followed) is spec
        body = router.message("job_1", spec, model="m", job_class="interactive").body
        assert json.loads(body)["headers"]["task"] == spec.name
    assert spec_for(DERENDER, (DERENDER,), followed=False) is DERENDER_ALONE_TASK


def test_a_gpu_worker_asks_for_all_interactive_work_before_any_batch_work() -> None:
    assert gpu_queues(["a", "b"]) == [
        "generate.a.interactive",
        "generate.b.interactive",
        "generate.a.batch",
        "generate.b.batch",
    ]
