"""The derender context of a job: what its answer depends on besides its tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tasks.ledger.store import Job
from tasks.protocol.derender_context import DerenderContext, context_from_json
from tasks.protocol.tokens import unpack_token_ids
from tasks.protocol.vllm_generate import answer_id
from tasks.specs import RENDER
from workers.derender import fold
from workers.models.catalog import ModelProfile
from workers.surfaces.vllm_generate import GENERATE


def read_context(profile: ModelProfile, job: Job, payloads: Mapping[str, bytes]) -> DerenderContext:
    """The context that the render stage stored; without a render stage, one made from the client's request.

    Raises InvalidRequest if the request needs a parser that the model does not have.
    """
    data = json.loads(payloads["context"])
    if RENDER in job.stages:
        return context_from_json(data)
    prompt = unpack_token_ids(payloads["prompt"])
    return fold.describe(
        profile,
        "generate",
        GENERATE.read({**data, "token_ids": prompt}),
        response_id=answer_id(job.id, data),
        created=int(job.created_at),
        prompt_token_ids=prompt,
        template_arguments={},
    )
