"""Liveness, readiness, and the list of models."""

from __future__ import annotations

from tasks.ledger.store import Worker
from tests.api.conftest import EVERY_QUEUE, Serve, Stage


async def test_a_whole_yard_is_ready(stage: Stage) -> None:
    assert (await stage.client.get("/health/live")).json() == {"status": "ok"}
    reply = await stage.client.get("/health/ready")
    body = reply.json()
    assert reply.status_code == 200 and body["status"] == "ok"
    assert body["stages"] == {"render": "ok", "derender": "ok"}
    assert body["models"] == {"tiny": {"worker": "ok", "engine": "ok"}}
    assert [worker["id"] for worker in body["workers"]] == ["cpu-1"]


async def test_it_says_which_stage_has_no_worker(serving: Serve) -> None:
    stage = await serving(queues=("render", "generate.tiny.interactive"))
    reply = await stage.client.get("/health/ready")
    assert reply.status_code == 503 and reply.headers["retry-after"]
    assert reply.json()["stages"] == {"render": "ok", "derender": "no live worker"}


async def test_it_says_which_model_has_no_worker_or_no_engine(serving: Serve) -> None:
    models = [
        {"name": name, "tokenizer": "/nowhere", "engine": {"kind": "scripted"}} for name in ("tiny", "other", "third")
    ]
    stage = await serving(models=models)
    await stage.store.announce(
        Worker("gpu-2", "gpu", ("generate.third.interactive",), ("third",), {"engines": {"third": "refused"}})
    )
    reply = await stage.client.get("/health/ready")
    assert reply.status_code == 503
    assert reply.json()["models"] == {
        "tiny": {"worker": "ok", "engine": "ok"},
        "other": {"worker": "no live worker", "engine": "unknown"},
        "third": {"worker": "ok", "engine": "refused"},
    }


async def test_a_worker_that_comes_makes_it_ready(serving: Serve) -> None:
    stage = await serving(queues=())
    assert (await stage.client.get("/health/ready")).status_code == 503
    await stage.store.announce(Worker("w", "cpu", EVERY_QUEUE, ("tiny",), {"engines": {"tiny": "ok"}}))
    assert (await stage.client.get("/health/ready")).status_code == 200


async def test_models_are_listed_and_found_by_name_and_alias(serving: Serve) -> None:
    model = {"name": "org/tiny", "aliases": ["gpt-4o"], "tokenizer": "/nowhere", "engine": {"kind": "scripted"}}
    stage = await serving(models=[model])
    listed = (await stage.client.get("/v1/models")).json()
    assert listed["object"] == "list" and [card["id"] for card in listed["data"]] == ["org/tiny", "gpt-4o"]
    for name in ("org/tiny", "gpt-4o"):
        assert (await stage.client.get(f"/v1/models/{name}")).json()["id"] == name
