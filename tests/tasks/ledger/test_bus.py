"""The parser of inbox messages reads what the scripts write."""

from __future__ import annotations

import pytest

from tasks.ledger.bus import BusMessage, parse_message
from tests.conftest import RedisServer, quick_settings


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'e job_1 7\nc{"a": 1}\nd{}', BusMessage("e", "job_1", 7, (b'c{"a": 1}', b"d{}"))),
        (b't job_1 12\n{"t":[1]}', BusMessage("t", "job_1", 12, (b'{"t":[1]}',))),
        (b"x job_1 cancelled", BusMessage("x", "job_1", 0, (), "cancelled")),
        ('e job_1 1\nc{"x":"é 東京"}'.encode(), BusMessage("e", "job_1", 1, ('c{"x":"é 東京"}'.encode(),))),
    ],
)
def test_a_message_is_taken_apart(raw: bytes, message: BusMessage) -> None:
    assert parse_message(raw) == message


async def test_an_inbox_says_when_it_may_have_lost_something(redis_server: RedisServer) -> None:
    from tasks.ledger.redis_store import RedisBus

    bus = RedisBus(quick_settings(), "nobody")  # nothing listens on this port
    with pytest.raises(OSError):
        await bus.receive(0.1)
    await bus.close()
    bus = RedisBus(quick_settings(redis_server.url), "somebody")
    assert await bus.receive(0.05) == []
    await bus.close()
