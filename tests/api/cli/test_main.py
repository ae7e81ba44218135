"""The console script: every command has help, and the commands that call the API do what they say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner, Result

from api.cli.main import main
from tests.api.conftest import Stage, chunk


def commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, *path, name)


ALL = dict(commands(main))


def test_the_commands_are_there() -> None:
    assert main.commands.keys() >= {"up", "demo", "api", "worker", "flower", "chat", "submit", "jobs", "models"}
    assert ("models", "pull") in ALL


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_help_with_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == 0
    assert "Example:" in result.output
    example = result.output.split("Example:")[1]
    assert " ".join(["tokenyard", *path]) in " ".join(example.split())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_option_says_what_it_is(path: tuple[str, ...]) -> None:
    for parameter in ALL[path].params:
        if isinstance(parameter, click.Option) and parameter.name not in ("help", "version"):
            assert parameter.help or parameter.default is not None, parameter.name


def test_examples_are_valid_command_lines() -> None:
    for path, command in ALL.items():
        for line in (command.help or "").splitlines():
            if "tokenyard " not in line or "|" in line:
                continue
            words = line.split("tokenyard ", 1)[1].split()
            found: click.Command = main
            while words and isinstance(found, click.Group) and words[0] in found.commands:
                found = found.commands[words.pop(0)]
            options = {name for parameter in found.params for name in parameter.opts}
            for word in words:
                if word.startswith("--"):
                    assert word.split("=")[0] in options, (path, line)


async def invoke(stage: Stage, *arguments: str, text: str = "") -> Result:
    environment = {"TOKENYARD_URL": str(stage.client.base_url)}
    return await asyncio.to_thread(CliRunner().invoke, main, arguments, input=text, env=environment)


async def test_a_chat_prints_what_comes(stage: Stage) -> None:
    asked = asyncio.create_task(invoke(stage, "chat", "--temperature", "0", "Hello"))
    claim = await stage.take()
    body = json.loads(claim.payloads["request"])
    assert body["messages"] == [{"role": "user", "content": "Hello"}]
    assert (body["model"], body["temperature"], body["stream"]) == ("tiny", 0, True)
    await stage.succeed(claim, chunk("Good "), chunk("day"))
    result = await asked
    assert result.exit_code == 0 and result.output == "Good day\n"


async def test_a_job_is_submitted_and_followed(stage: Stage) -> None:
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]})
    asked = asyncio.create_task(invoke(stage, "submit", "-", "--follow", text=body))
    await stage.succeed(await stage.take(), b'r{"id":"chatcmpl-1"}')
    result = await asked
    assert result.exit_code == 0, result.output
    job_id, *lines = result.output.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["status", "status", "response", "done"]
    listed = await invoke(stage, "jobs")
    assert job_id in listed.output and "succeeded" in listed.output
    for command, shown in (("show", '"succeeded"'), ("result", "chatcmpl-1"), ("events", "done"), ("cancel", "succ")):
        result = await invoke(stage, "jobs", command, job_id)
        assert result.exit_code == 0 and shown in result.output, command


async def test_models_are_listed(stage: Stage) -> None:
    assert "tiny" in (await invoke(stage, "models")).output


@pytest.mark.parametrize("arguments", [("jobs", "show", "job_none"), ("chat", "--model", "gpt-9", "Hello")])
async def test_an_error_of_the_api_ends_the_command_with_its_message(stage: Stage, arguments: tuple[str, ...]) -> None:
    result = await invoke(stage, *arguments)
    assert result.exit_code == 1 and "Error: 404" in result.output and "Traceback" not in result.output


def test_an_api_that_is_not_there_is_said_in_one_line() -> None:
    result = CliRunner().invoke(main, ["models", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 1 and result.output.count("\n") == 1
