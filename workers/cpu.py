"""`celery -A workers.cpu worker`: requests to token ids, and token ids to answers.

One process is one core's worth: a few pool threads for what computes (`render`, one-shot `derender`), and any number
of followed streams on the event loop beside them. More cores take more processes.
"""

from __future__ import annotations

import json

from tasks.app import cpu_queues, create_app
from tasks.protocol.base import compact_json
from tasks.protocol.derender import DerenderContext, context_from_json, context_to_json
from tasks.protocol.generate import TokenIds, chunk_from_json, pack_token_ids, unpack_token_ids
from tasks.settings import load_settings
from tasks.specs import DERENDER_TASK, ENDPOINTS, FOLLOW_TASK, RENDER_TASK
from tasks.store import Claim, Commit, Status, event_line
from workers import derendering
from workers.catalog import Catalog, ModelProfile
from workers.following import Followers
from workers.parsing.spec import REASONING
from workers.rendering.requests import EngineFacts, resolve_request
from workers.runtime import Runtime, bind, serve
from workers.surfaces.base import load_surface


def render(claim: Claim) -> Commit:
    """A client's body to prompt token ids, sampling parameters, and what derendering must know."""
    job = claim.job
    profile = catalog.get(job.model)
    surface = ENDPOINTS[job.endpoint].surface
    request = load_surface(surface).read(json.loads(claim.payloads["request"]))
    conversation = load_surface(surface).converse(request)
    rendered = profile.renderer.render(conversation)
    context = derendering.describe(
        profile,
        surface,
        request,
        response_id=f"chatcmpl-{job.id.removeprefix('job_')}",
        created=int(job.created_at),
        prompt_token_ids=rendered.token_ids,
    )
    facts = EngineFacts(
        max_model_len=profile.max_model_len,
        generation_defaults=profile.generation_defaults,
        default_template_arguments=profile.settings.default_template_arguments,
        tool_parser=profile.settings.tool_parser,
        reasoning_parser=profile.settings.reasoning_parser,
        forced=profile.parser.format.forced,
    )
    ended = _reasoning_ended(profile, context, rendered.token_ids)
    generate = resolve_request(conversation, rendered, facts, reasoning_ended=ended)
    return Commit(
        payloads={
            "prompt": pack_token_ids(rendered.token_ids),
            "generate": compact_json(generate),
            "context": compact_json(context_to_json(context)),
        },
        prompt_tokens=len(rendered.token_ids),
        done=True,
        messages=runtime.pipeline.next_messages(job, claim.stage),
    )


def _reasoning_ended(profile: ModelProfile, context: DerenderContext, prompt_token_ids: TokenIds) -> bool | None:
    """Whether the prompt itself closed the reasoning; None for a model that has none."""
    if profile.settings.reasoning_parser is None:
        return None
    return derendering.start(profile, context, prompt_token_ids).choices[0].parse.mode != REASONING


def derender(claim: Claim) -> Commit:
    """All of a job's token chunks to its answer."""
    profile = catalog.get(claim.job.model)
    context = context_from_json(json.loads(claim.payloads["context"]))
    entries = runtime.wait(runtime.store.read_tokens(claim.job.id, 0))
    response = derendering.respond(
        profile,
        context,
        unpack_token_ids(claim.payloads["prompt"]),
        [chunk_from_json(json.loads(entry.data)) for entry in entries],
    )
    return Commit(events=[event_line("r", compact_json(response))], done=True, status=Status.SUCCEEDED)


settings = load_settings()
app = create_app(settings, queues=cpu_queues(), threads=settings.workers.cpu_threads)
catalog = Catalog(settings)
followers: Followers
runtime = Runtime(
    settings,
    app,
    "cpu",
    queues=tuple(cpu_queues()),
    models=tuple(model.name for model in settings.models),
    detail=lambda: {"loaded": catalog.loaded, "streams": len(followers)},
)
followers = Followers(runtime, catalog)
serve(app, runtime, opening=catalog.preload)
bind(app, RENDER_TASK, lambda job_id: runtime.compute(RENDER_TASK, job_id, render))
bind(app, DERENDER_TASK, lambda job_id: runtime.compute(DERENDER_TASK, job_id, derender))
bind(app, FOLLOW_TASK, lambda job_id: runtime.launch(FOLLOW_TASK, job_id, followers.follow))
