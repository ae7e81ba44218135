"""The render stage of a job: a client's body to prompt token ids, sampling parameters, and the derender context.

If the job ends with its render stage, its answer is made here as well (`workers.render.answers`).
"""

from __future__ import annotations

import json

from tasks.ledger.store import Claim, Commit, Status, event_line
from tasks.protocol.base import compact_json
from tasks.protocol.derender_context import context_to_json
from tasks.protocol.tokens import pack_token_ids
from tasks.specs import ENDPOINTS, RENDER
from workers.derender import fold
from workers.models.catalog import Catalog
from workers.render.answers import RENDER_ANSWERS
from workers.render.limits import check_engine_request
from workers.render.prompts import prepare
from workers.runtime.process import Runtime


def render(runtime: Runtime, catalog: Catalog, claim: Claim) -> Commit:
    """Runs the render stage and returns what to commit; raises InvalidRequest naming the field."""
    job = claim.job
    endpoint = ENDPOINTS[job.endpoint]
    profile = catalog.get(job.model)
    body = json.loads(claim.payloads["request"])
    if endpoint.stages == (RENDER,):
        answer = compact_json(RENDER_ANSWERS[endpoint.surface](profile, body, job.id))
        return Commit(events=[event_line("r", answer)], done=True, status=Status.SUCCEEDED)
    prepared = prepare(profile, endpoint.surface, body)
    (prompt,) = prepared.prompts
    check_engine_request(profile.tokenizer, prompt.fields)
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
