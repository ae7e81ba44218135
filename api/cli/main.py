"""The `tokenyard` command: run the whole system or single processes, chat with a model, and manage jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NoReturn

import click

from api.cli.check import check_yard, refuse, show
from api.cli.client import Client, address_of, load_settings_or_defaults
from api.cli.supervisor import ServiceFailed, Supervisor
from api.cli.yard import Ports, await_ready, flower_command, free_port, python, start_yard, worker_command
from tasks.faults import redis_faults, settings_or_exit


def _replace_process(command: tuple[str, ...]) -> NoReturn:
    os.execv(command[0], command)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tokenyard")
def main() -> None:
    """Tokenyard: LLM inference as queued work.

    \b
    Example:
      tokenyard up
    """


@main.command()
def up() -> None:
    """Run everything on this machine until Ctrl-C.

    Without a configured Redis or model, it starts its own Redis and an engine with a small real model.

    \b
    Example:
      tokenyard up
      TOKENYARD_REDIS_URL=redis://10.0.0.5:6379/0 tokenyard up
    """
    settings = settings_or_exit()
    ports = Ports(settings.api.port, settings.flower.port)
    faults = check_yard(settings)
    if any(fault.fatal for fault in faults):
        refuse(faults)
    show(faults)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    os.environ.setdefault("TOKENYARD_LOG_FORMAT", "text")
    supervisor = Supervisor(sys.stdout)
    try:
        folder = Path(os.environ.get("TOKENYARD_STATE", ".tokenyard"))
        start_yard(settings, supervisor, folder, ports, lambda part: supervisor.log("up", f"starting {part}"))
        supervisor.watch()
        await_ready(ports.api)
        supervisor.log("up", f"API on http://127.0.0.1:{ports.api} (documentation at /docs)")
        supervisor.log("up", f"Flower on http://127.0.0.1:{ports.flower} (user {settings.flower.user})")
        stop.wait()
        supervisor.log("up", "stopping")
    except (ServiceFailed, subprocess.CalledProcessError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        supervisor.stop()


@main.command()
def check() -> None:
    """Check the settings, Redis, the models' files and the ports, without starting anything.

    \b
    Example:
      tokenyard check
    """
    faults = check_yard(settings_or_exit())
    show(faults)
    if any(fault.fatal for fault in faults):
        sys.exit(2)
    click.echo("everything is in order" if not faults else "nothing keeps a start back")


@main.command()
def demo() -> None:
    """Start everything, send three requests, and stop everything.

    \b
    Example:
      tokenyard demo
    """
    settings = settings_or_exit()
    ports = Ports(free_port(), free_port())
    log_path = Path(os.environ.get("TOKENYARD_STATE", ".tokenyard")) / "demo.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    passed, total = 0, 3
    with log_path.open("w") as log, tempfile.TemporaryDirectory() as folder:
        supervisor = Supervisor(log)
        try:
            start_yard(settings, supervisor, Path(folder), ports, lambda part: click.echo(f"starting {part}"))
            supervisor.watch()
            await_ready(ports.api)
            from api.cli.demo import run_demo

            url = f"http://127.0.0.1:{ports.api}"
            model = Client(url, None).request("GET", "/v1/models")["data"][0]["id"]
            passed, total = run_demo(url, model)
        except (ServiceFailed, subprocess.CalledProcessError) as error:
            click.echo(f"{error}; see the log in {log_path}", err=True)
        finally:
            supervisor.stop()
    click.echo(f"\ndemo: {passed} of {total} passed")
    sys.exit(0 if passed == total else 1)


@main.command()
@click.option("--host", help="Address to listen on (default: from the settings, 127.0.0.1).")
@click.option("--port", type=int, help="Port to listen on (default: from the settings, 8000).")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Number of API processes.")
def api(host: str | None, port: int | None, processes: int) -> None:
    """Run the API.

    \b
    Example:
      tokenyard api --host 0.0.0.0 --port 8000
    """
    import uvicorn

    settings = settings_or_exit()
    faults = list(redis_faults(settings))
    if any(fault.fatal for fault in faults):
        refuse(faults)
    show(faults)
    uvicorn.run(
        "api.app:create_app",
        factory=True,
        host=host or settings.api.host,
        port=port or settings.api.port,
        workers=processes,
        log_level="warning",
        access_log=False,
        # Longer than clients and load balancers keep idle connections, so they close first and never send into a
        # connection that the server is closing.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("kind", type=click.Choice(["cpu", "gpu"]))
@click.option("--models", help="GPU workers: serve only these models, separated by commas.")
@click.argument("celery_options", nargs=-1, type=click.UNPROCESSED)
def worker(kind: str, models: str | None, celery_options: tuple[str, ...]) -> None:
    """Run one worker process: `cpu` renders and derenders, `gpu` calls engines.

    Other options are passed to Celery.

    \b
    Example:
      tokenyard worker cpu
      tokenyard worker gpu --models qwen3-8b -n gpu1@%h
    """
    settings_or_exit()
    if models:
        os.environ["TOKENYARD_GPU_MODELS"] = models
    _replace_process(worker_command(kind, extra=celery_options))


@main.command()
def flower() -> None:
    """Run Flower to watch tasks by stage and model: read-only, with a password, and without prompts.

    \b
    Example:
      TOKENYARD_FLOWER__PASSWORD=secret tokenyard flower
    """
    _replace_process(flower_command(settings_or_exit()))


def _client_options(command: Any) -> Any:
    url = click.option(
        "--url",
        envvar="TOKENYARD_URL",
        default=lambda: address_of(load_settings_or_defaults()),
        show_default="that of the settings here",
        help="The API.",
    )
    key = click.option(
        "--key",
        envvar=["TOKENYARD_KEY", "TOKENYARD_API_KEY"],
        default=lambda: next(iter(load_settings_or_defaults().api.keys), None),
        show_default="that of the settings here",
        help="API key, if the API requires one.",
    )
    return url(key(command))


def _first_model(client: Client) -> str:
    return str(client.request("GET", "/v1/models")["data"][0]["id"])


@main.command()
@click.argument("prompt", required=False)
@click.option("--model", help="Default: the first served model.")
@click.option("--system", help="System message.")
@click.option("--max-tokens", type=int, help="Maximum number of tokens in an answer.")
@click.option("--temperature", type=float, help="0 is deterministic.")
@_client_options
def chat(
    prompt: str | None,
    model: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    url: str,
    key: str | None,
) -> None:
    """Chat with a served model: one question with PROMPT, otherwise until Ctrl-D.

    \b
    Example:
      tokenyard chat
      tokenyard chat --temperature 0 "Name three animals."
    """
    client = Client(url, key)
    messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    sampling = {"max_tokens": max_tokens, "temperature": temperature}
    body = {"model": model or _first_model(client), "stream": True} | {
        name: value for name, value in sampling.items() if value is not None
    }
    while True:
        try:
            question = prompt if prompt is not None else click.prompt(">", prompt_suffix=" ")
        except click.Abort:
            click.echo()
            return
        messages.append({"role": "user", "content": question})
        answer = ""
        for event in client.stream("POST", "/v1/chat/completions", {**body, "messages": messages}):
            if event.data is None:
                break
            if "error" in event.data:
                raise click.ClickException(event.data["error"]["message"])
            for choice in event.data["choices"]:
                if reasoning := choice["delta"].get("reasoning"):
                    click.secho(reasoning, nl=False, dim=True)
                text = choice["delta"].get("content") or ""
                answer += text
                click.echo(text, nl=False)
        click.echo()
        messages.append({"role": "assistant", "content": answer})
        if prompt is not None:
            return


@main.command()
@click.argument("body", type=click.File())
@click.option("--endpoint", default="/v1/chat/completions", show_default=True, help="Route that the body is for.")
@click.option("--class", "job_class", type=click.Choice(["interactive", "batch"]), default="batch", show_default=True)
@click.option("--idempotency-key", help="A repeat with the same key returns the same job.")
@click.option("--follow", is_flag=True, help="Print the job's events until it ends.")
@_client_options
def submit(
    body: Any, endpoint: str, job_class: str, idempotency_key: str | None, follow: bool, url: str, key: str | None
) -> None:
    """Submit a request as a job. BODY is a file with the request's JSON, or - for standard input.

    \b
    Example:
      echo '{"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}]}' | tokenyard submit - --follow
    """
    try:
        request = json.load(body)
    except ValueError as error:
        raise click.ClickException(f"the body is not valid JSON: {error}") from error
    client = Client(url, key)
    headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
    job = client.request(
        "POST", "/v1/jobs", {"endpoint": endpoint, "body": request, "class": job_class}, headers=headers
    )
    click.echo(job["id"])
    if follow:
        _follow(client, job["id"])


def _follow(client: Client, job_id: str) -> None:
    for event in client.stream("GET", f"/v1/jobs/{job_id}/events"):
        click.echo(json.dumps({"id": event.id, "event": event.name, "data": event.data}, ensure_ascii=False))


@main.group(invoke_without_command=True)
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 100))
@_client_options
@click.pass_context
def jobs(context: click.Context, limit: int, url: str, key: str | None) -> None:
    """List jobs, or show, follow or cancel one.

    \b
    Example:
      tokenyard jobs
      tokenyard jobs show job_01h...
      tokenyard jobs cancel job_01h...
    """
    context.obj = Client(url, key)
    if context.invoked_subcommand is None:
        for job in context.obj.request("GET", f"/v1/jobs?limit={limit}")["data"]:
            stage = job["stage"] or "-"
            click.echo(f"{job['id']}  {job['status']:<10} {stage:<9} {job['model']:<20} {job['endpoint']}")


@jobs.command("show")
@click.argument("job_id")
@click.pass_obj
def show_job(client: Client, job_id: str) -> None:
    """Print a job. Example: tokenyard jobs show job_01h..."""
    click.echo(json.dumps(client.request("GET", f"/v1/jobs/{job_id}"), indent=2, ensure_ascii=False))


@jobs.command("result")
@click.argument("job_id")
@click.pass_obj
def job_result(client: Client, job_id: str) -> None:
    """Print a job's answer. Example: tokenyard jobs result job_01h..."""
    click.echo(json.dumps(client.request("GET", f"/v1/jobs/{job_id}/result"), indent=2, ensure_ascii=False))


@jobs.command("events")
@click.argument("job_id")
@click.pass_obj
def job_events(client: Client, job_id: str) -> None:
    """Follow a job's events. Example: tokenyard jobs events job_01h..."""
    _follow(client, job_id)


@jobs.command("cancel")
@click.argument("job_id")
@click.pass_obj
def cancel_job(client: Client, job_id: str) -> None:
    """Cancel a job. Example: tokenyard jobs cancel job_01h..."""
    click.echo(client.request("DELETE", f"/v1/jobs/{job_id}")["status"])


@main.group(invoke_without_command=True)
@_client_options
@click.pass_context
def models(context: click.Context, url: str, key: str | None) -> None:
    """List the served models, download a model's files, or say what a folder is served with.

    \b
    Example:
      tokenyard models
      tokenyard models pull smollm2
      tokenyard models check /models/Qwen3-8B
    """
    if context.invoked_subcommand is None:
        for model in Client(url, key).request("GET", "/v1/models")["data"]:
            click.echo(f"{model['id']:<24} {model.get('max_model_len') or ''}")


@models.command("pull")
@click.argument("name")
def pull_model(name: str) -> None:
    """Download a model's files into the cache: `smollm2`, a Hugging Face repository, or a local folder.

    \b
    Example:
      tokenyard models pull smollm2
      tokenyard models pull Qwen/Qwen3-0.6B
    """
    sys.exit(subprocess.run(python("workers.models", "pull", name), check=False).returncode)


@models.command("check")
@click.argument("folder")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check_model(folder: str, as_json: bool) -> None:
    """Say which renderer and parsers a model's FOLDER is served with, why, and what is wrong with it.

    \b
    Example:
      tokenyard models check /models/Qwen3-8B
    """
    flags = ["--json"] if as_json else []
    sys.exit(subprocess.run(python("workers.models", "check", folder, *flags), check=False).returncode)


if __name__ == "__main__":
    main()
