"""compose.yaml and the Dockerfile say what the code can do: valid files, commands that exist, extras that suffice.

`data/compose-spec.json` is the Compose Specification's own schema (Apache-2.0), as docker-compose 1.29.2 ships it.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from jsonschema import Draft7Validator

from api.cli.main import main
from tasks.settings import Settings

ROOT = Path(__file__).parent.parent
COMPOSE_TEXT = (ROOT / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def stages() -> dict[str, str]:
    """The Dockerfile's stages by name."""
    parts = re.split(r"(?m)^FROM \S+ AS (\S+)$", DOCKERFILE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def resolve(arguments: list[str]) -> click.Context:
    """Parse a command line with the console script; raises where it would refuse it. Nothing is run."""
    context = main.make_context("tokenyard", list(arguments))
    command: click.Command = main
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            break
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)
    return context


def test_it_is_a_compose_file() -> None:
    schema = json.loads((ROOT / "tests/data/compose-spec.json").read_text())
    composed = {key: value for key, value in COMPOSE.items() if not key.startswith("x-")}
    assert [error.message for error in Draft7Validator(schema).iter_errors(composed)] == []
    composed["services"] = {"api": {"imgae": "typo"}}
    assert not Draft7Validator(schema).is_valid(composed)


def test_the_parts_are_there() -> None:
    assert SERVICES.keys() == {"redis", "api", "cpu", "gpu", "flower", "vllm"}
    assert SERVICES["vllm"]["profiles"] == ["gpu"]
    assert "container_name" not in SERVICES["cpu"] and "ports" not in SERVICES["cpu"]  # `--scale cpu=4` must work


def test_redis_keeps_what_it_accepted() -> None:
    command = SERVICES["redis"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"
    assert SERVICES["redis"]["volumes"] == ["redis:/data"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_says_whether_it_is_healthy(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", OURS)
def test_a_service_starts_once_what_it_needs_is_healthy(name: str) -> None:
    needs = OURS[name]["depends_on"]
    assert needs["redis"] == {"condition": "service_healthy"}
    for needed in needs:
        assert "profiles" not in SERVICES[needed], "a service without a profile cannot wait for one with a profile"


@pytest.mark.parametrize(
    ("name", "command"), [("api", "api"), ("cpu", "worker"), ("gpu", "worker"), ("flower", "flower")]
)
def test_commands_are_those_of_the_console_script(name: str, command: str) -> None:
    assert resolve(OURS[name]["command"]).command.name == command


def test_a_wrong_command_would_be_noticed() -> None:
    for wrong in (["wroker", "cpu"], ["worker", "tpu"], ["api", "--prot", "1"]):
        with pytest.raises(click.UsageError):
            resolve(wrong)


def test_images_start_with_a_command_of_the_console_script() -> None:
    for name in ("api", "cpu", "gpu"):
        (default,) = re.findall(r"(?m)^CMD (.+)$", stages()[name])
        assert resolve(json.loads(default)).command.name in ("api", "worker")
    assert 'ENTRYPOINT ["tokenyard"]' in stages()["base"]


@pytest.mark.parametrize("name", OURS)
def test_a_service_is_built_from_a_target_that_runs_it(name: str) -> None:
    target = OURS[name]["build"]["target"]
    text = stages()[target]
    extras = re.findall(r'whl\)\[([\w,]+)\]"', text)[0].split(",")
    assert set(extras) <= PROJECT["optional-dependencies"].keys()
    assert name in extras
    assert re.search(r"(?m)^USER tokenyard$", text), "nothing runs as root"
    needed = " ".join(requirement for extra in extras for requirement in PROJECT["optional-dependencies"][extra])
    assert "click" in needed and "httpx" in needed, "the console script does not start"
    assert "torch" not in needed and "vllm" not in needed


def test_what_the_images_copy_is_not_ignored() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    copied = {
        path.strip("/") for paths in re.findall(r"(?m)^COPY (.+) \S+$", DOCKERFILE) for path in paths.split()
    } | set(re.findall(r"type=bind,source=([\w.]+)", DOCKERFILE))
    assert copied <= allowed
    assert all((ROOT / path).exists() for path in copied)


def test_the_environment_is_that_of_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for service in OURS.values():
        for variable, value in service["environment"].items():
            monkeypatch.setenv(variable, re.sub(r"\$\{\w+:-(.*)\}", r"\1", value))
    monkeypatch.setenv("TOKENYARD_CONFIG", str(tmp_path / "tokenyard.toml"))
    sample = re.search(r"(?ms)^#   \[\[models\]\].*?^#$", COMPOSE_TEXT)
    assert sample is not None
    (tmp_path / "tokenyard.toml").write_text(re.sub(r"(?m)^#\s*", "", sample[0]))
    settings = Settings()
    assert settings.redis_url == "redis://redis:6379/0"
    assert settings.flower.host == "0.0.0.0" and settings.api.keys == ()
    (model,) = settings.models
    assert model.engine.urls == ("http://vllm:8000",)
    assert f":-{model.name}}}" in " ".join(SERVICES["vllm"]["command"])


def test_variables_of_the_environment_are_settings() -> None:
    for service in OURS.values():
        for variable in service["environment"]:
            if variable == "TOKENYARD_CONFIG":
                continue
            field: Any = Settings
            for part in variable.removeprefix("TOKENYARD_").lower().split("__"):
                assert part in field.model_fields, variable
                field = field.model_fields[part].annotation


def test_vllm_serves_tokens() -> None:
    assert "--enable-scale-out" in SERVICES["vllm"]["command"]
    assert SERVICES["vllm"]["image"].startswith("vllm/vllm-openai:v0.33")
