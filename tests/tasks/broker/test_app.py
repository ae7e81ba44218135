"""The broker's URL for redis-py and for kombu."""

from __future__ import annotations

import pytest

from tasks.broker.app import broker_url, create_app
from tests.conftest import quick_settings


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("rediss://:secret@redis:6379/1", "rediss://:secret@redis:6379/1"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=0"),
        ("unix:///run/redis.sock?db=3", "redis+socket:///run/redis.sock?virtual_host=3"),
        ("unix://user:secret@/run/redis.sock?db=3", "redis+socket://user:secret@/run/redis.sock?virtual_host=3"),
    ],
)
def test_a_redis_is_named_as_kombu_names_it(given: str, meant: str) -> None:
    assert broker_url(given) == meant


def test_flower_is_shown_the_queues_and_the_slots() -> None:
    app = create_app(quick_settings(), queues=["derender", "render"], slots=3)
    assert list(app.amqp.queues) == ["derender", "render"] and app.conf.worker_concurrency == 3
