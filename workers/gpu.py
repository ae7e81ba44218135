"""`celery -A workers.gpu worker`: sends prompts to engines and writes their tokens to the jobs' channels.

One process runs hundreds of requests: one thread takes them, and one event loop runs them all.
"""

from __future__ import annotations

import os

from tasks.broker.app import create_app, gpu_queues
from tasks.faults import settings_or_exit
from tasks.settings import ModelSettings, Settings
from tasks.specs import GENERATE_TASK
from workers.generate.slots import Slots
from workers.generate.task import Generator
from workers.runtime.celery_worker import serve
from workers.runtime.process import Runtime
from workers.runtime.stages import Task


def _served(settings: Settings) -> tuple[ModelSettings, ...]:
    """Return this worker's models: those in `TOKENYARD_GPU_MODELS` (names separated by commas), or all."""
    wanted = [name for name in os.environ.get("TOKENYARD_GPU_MODELS", "").split(",") if name]
    models = tuple(model for model in settings.models if not wanted or model.name in wanted)
    if unknown := set(wanted) - {model.name for model in models}:
        raise SystemExit(
            f"TOKENYARD_GPU_MODELS names unknown models: {', '.join(sorted(unknown))}. "
            f"The settings have: {', '.join(model.name for model in settings.models) or 'no models'}"
        )
    return models


settings = settings_or_exit()
models = _served(settings)
queues = gpu_queues([model.name for model in models])
app = create_app(settings, queues=queues, slots=sum(model.engine.concurrency for model in models))
runtime: Runtime
generator: Generator
slots = Slots(models, settings.workers.batch_share, busy=lambda: runtime.claims.by_model())
runtime = Runtime(
    settings,
    app,
    "gpu",
    queues=queues,
    models=[model.name for model in models],
    accepts=slots.accepts,
    detail=lambda: {"engines": generator.health, "busy": dict(runtime.claims.by_model())},
)
generator = Generator(runtime, models)
serve(
    runtime,
    (Task(GENERATE_TASK, coroutine=generator.generate),),
    opening=lambda: runtime.loop.wait(generator.open()),
    closing=lambda: runtime.loop.wait(generator.close()),
)
