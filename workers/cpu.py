"""`celery -A workers.cpu worker`: requests to token ids, and token ids to answers.

One process is one core's worth: a few pool threads for what computes (`render`, one-shot `derender`), and any number
of followed streams on the event loop beside them. More cores take more processes.
"""

from __future__ import annotations

import json

from tasks.broker.app import cpu_queues, create_app
from tasks.errors import JobNotFound
from tasks.ledger.store import Claim, Commit, Status, event_line
from tasks.protocol.base import JsonObject, compact_json
from tasks.protocol.derender_context import context_to_json
from tasks.protocol.tokens import chunk_from_json, pack_token_ids, unpack_token_ids
from tasks.settings import load_settings
from tasks.specs import (
    CPU,
    DERENDER_ALONE_TASK,
    DERENDER_TASK,
    ENDPOINTS,
    FOLLOW_TASK,
    RENDER,
    RENDER_TASK,
    STORED_DERENDER,
)
from workers.derender import fold
from workers.derender.answers import derender_request, other_reader, read_otherwise
from workers.derender.context import read_context
from workers.derender.follow import Followers
from workers.models.catalog import Catalog, ModelProfile
from workers.render.answers import RENDER_ANSWERS
from workers.render.prompts import prepare
from workers.runtime.process import Runner, Runtime, bind, serve

LINGER_S = 0.05
"""How long a pool thread that has finished a task waits for the next one before it returns to Celery."""


def render(claim: Claim) -> Commit:
    """A client's body to prompt token ids, sampling parameters, and what derendering must know."""
    job = claim.job
    endpoint = ENDPOINTS[job.endpoint]
    profile = catalog.get(job.model)
    body = json.loads(claim.payloads["request"])
    if endpoint.stages == (RENDER,):
        answer = compact_json(RENDER_ANSWERS[endpoint.surface](profile, body, job.id))
        return Commit(events=[event_line("r", answer)], done=True, status=Status.SUCCEEDED)
    prepared = prepare(profile, endpoint.surface, body)
    (prompt,) = prepared.prompts
    context = fold.describe(
        profile,
        endpoint.surface,
        prepared.request,
        response_id=f"chatcmpl-{job.id.removeprefix('job_')}",
        created=int(job.created_at),
        prompt_token_ids=prompt.token_ids,
        prompt_text=prompt.text,
    )
    return Commit(
        payloads={
            "prompt": pack_token_ids(prompt.token_ids),
            "generate": compact_json(prompt.fields),
            "context": compact_json(context_to_json(context)),
        },
        prompt_tokens=len(prompt.token_ids),
        done=True,
        messages=runtime.pipeline.next_messages(job, claim.stage),
    )


def derender(claim: Claim) -> Commit:
    """All of a job's token chunks to its answer."""
    profile = catalog.get(claim.job.model)
    context = read_context(profile, claim.job, claim.payloads)
    entries = runtime.wait(runtime.store.read_tokens(claim.job.id, 0))
    response = fold.respond(
        profile,
        context,
        unpack_token_ids(claim.payloads["prompt"]),
        [chunk_from_json(json.loads(entry.data)) for entry in entries],
    )
    return Commit(events=[event_line("r", compact_json(response))], done=True, status=Status.SUCCEEDED)


def derender_alone(claim: Claim) -> Commit:
    """A derender route's body to its answer."""
    job = claim.job
    profile = catalog.get(job.model)
    body = json.loads(claim.payloads["request"])
    if job.endpoint == STORED_DERENDER.path:
        answer = _derender_stored(profile, body)
    else:
        answer = derender_request(profile, ENDPOINTS[job.endpoint].surface, body, created=int(job.created_at))
    return Commit(events=[event_line("r", compact_json(answer))], done=True, status=Status.SUCCEEDED)


def _derender_stored(profile: ModelProfile, body: JsonObject) -> JsonObject:
    """What an earlier job generated, read again."""
    store, source_id = runtime.store, body["source"]
    source = runtime.wait(store.get(source_id))
    stored = {name: runtime.wait(store.payload(source_id, name)) for name in ("prompt", "context")}
    payloads = {name: value for name, value in stored.items() if value is not None}
    entries = runtime.wait(store.read_tokens(source_id, 0))
    if source is None or len(payloads) < len(stored) or not entries:
        raise JobNotFound(f"Nothing is kept of what {source_id!r} generated.", param="id")
    own = catalog.get(source.model)
    reader = other_reader(profile, own, body)
    return fold.respond(
        reader,
        read_otherwise(read_context(own, source, payloads), reader),
        unpack_token_ids(payloads["prompt"]),
        [chunk_from_json(json.loads(entry.data)) for entry in entries],
    )


settings = load_settings()
app = create_app(settings, queues=cpu_queues(), threads=settings.workers.cpu_threads - 1)
catalog = Catalog(settings)
followers: Followers
runtime = Runtime(
    settings,
    app,
    "cpu",
    queues=tuple(cpu_queues()),
    pools=(CPU,),
    models=tuple(model.name for model in settings.models),
    detail=lambda: {"loaded": catalog.loaded, "streams": len(followers)},
)
followers = Followers(runtime, catalog)
serve(app, runtime, opening=catalog.preload, standing=lambda: runtime.stand(runners))
runners: dict[str, Runner] = {
    RENDER_TASK.name: lambda job_id, given: runtime.compute(RENDER_TASK, job_id, render, given),
    DERENDER_TASK.name: lambda job_id, given: runtime.compute(DERENDER_TASK, job_id, derender, given),
    DERENDER_ALONE_TASK.name: lambda job_id, given: runtime.compute(DERENDER_ALONE_TASK, job_id, derender_alone, given),
    FOLLOW_TASK.name: lambda job_id, given: runtime.launch(FOLLOW_TASK, job_id, followers.follow, given),
}
bind(app, runners, after=lambda: runtime.take_more(runners, wait_s=LINGER_S))
