"""Who answers for the reference: its recording, or itself (`--peer`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peer.recordings import Recording, versions_of
from tests.peer.reference import PEER, Frontend, started


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What needs the reference itself is left to `make peer`."""
    if config.getoption("--peer") == "live":
        return
    skip = pytest.mark.skip(reason="the reference itself is needed: make peer")
    for item in items:
        if item.get_closest_marker("peer_live"):
            item.add_marker(skip)


@pytest.fixture(scope="module")
def recording(request: pytest.FixtureRequest) -> Iterator[Recording]:
    """The answers to this module's questions."""
    name = request.module.__name__.rpartition(".")[2].removeprefix("test_")
    recording = Recording(name, request.config.getoption("--peer"))
    if recording.asks and not (PEER / "bin/python").exists():
        pytest.skip("the reference is not installed")
    yield recording
    if recording.mode == "record":
        recording.write(versions_of(PEER / "bin/python"))


@pytest.fixture(autouse=True)
def _everything_is_recorded(recording: Recording) -> Iterator[None]:
    yield
    if recording.missing:
        error = recording.missing[0]
        recording.missing.clear()
        raise error


@pytest.fixture(scope="module")
def frontend(recording: Recording) -> Iterator[Frontend]:
    """The reference's frontend, as this module asks it."""
    with started(recording) as asked:
        yield asked
