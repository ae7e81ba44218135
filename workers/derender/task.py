"""The derender stage of a job whose tokens are all there: token chunks to the whole answer.

Three tasks work like this: the last stage of a job that is not followed, a derender route's body, and the tokens of an
earlier job derendered again. A stream that is followed is derendered by `workers.derender.follow`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tasks.errors import JobNotFound
from tasks.ledger.store import Claim, Commit, Entry, Status, event_line
from tasks.protocol.base import JsonObject, compact_json
from tasks.protocol.tokens import TokenChunk, chunk_from_json, unpack_token_ids
from tasks.specs import ENDPOINTS, STORED_DERENDER
from workers.derender import fold
from workers.derender.answers import change_profile, derender_request, select_profile
from workers.derender.context import read_context
from workers.models.catalog import Catalog, ModelProfile
from workers.runtime.process import Runtime


def derender(runtime: Runtime, catalog: Catalog, claim: Claim) -> Commit:
    """Derenders all of a job's token chunks to its answer."""
    profile = catalog.get(claim.job.model)
    context = read_context(profile, claim.job, claim.payloads)
    entries = runtime.loop.wait(runtime.store.read_tokens(claim.job.id, 0))
    return _answered(fold.respond(profile, context, unpack_token_ids(claim.payloads["prompt"]), chunks_of(entries)))


def derender_alone(runtime: Runtime, catalog: Catalog, claim: Claim) -> Commit:
    """Derenders a derender route's body to its answer."""
    job = claim.job
    profile = catalog.get(job.model)
    body = json.loads(claim.payloads["request"])
    if job.endpoint == STORED_DERENDER.path:
        return _answered(_derender_stored(runtime, catalog, profile, body))
    return _answered(derender_request(profile, ENDPOINTS[job.endpoint].surface, body, created=int(job.created_at)))


def _derender_stored(runtime: Runtime, catalog: Catalog, profile: ModelProfile, body: JsonObject) -> JsonObject:
    """Derenders the tokens of an earlier job again."""
    store, wait, source_id = runtime.store, runtime.loop.wait, body["source"]
    source = wait(store.get(source_id))
    stored = {name: wait(store.payload(source_id, name)) for name in ("prompt", "context")}
    payloads = {name: value for name, value in stored.items() if value is not None}
    entries = wait(store.read_tokens(source_id, 0))
    if source is None or len(payloads) < len(stored) or not entries:
        raise JobNotFound(f"There is no job {source_id!r}, or its tokens are no longer stored.", param="id")
    own = catalog.get(source.model)
    selected = select_profile(profile, own, body)
    context = change_profile(read_context(own, source, payloads), selected)
    return fold.respond(selected, context, unpack_token_ids(payloads["prompt"]), chunks_of(entries))


def chunks_of(entries: Sequence[Entry]) -> list[TokenChunk]:
    """The chunks of a token channel."""
    return [chunk_from_json(json.loads(entry.data)) for entry in entries]


def _answered(answer: JsonObject) -> Commit:
    return Commit(events=[event_line("r", compact_json(answer))], done=True, status=Status.SUCCEEDED)
