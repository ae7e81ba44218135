"""`celery -A workers.cpu worker`: renders requests to token ids, and derenders token ids to answers.

One process uses about one core: a few threads for `render` and one-shot `derender`, and any number of followed streams
on the event loop. To use more cores, run more processes.
"""

from __future__ import annotations

from functools import partial

from tasks.broker.app import cpu_queues, create_app
from tasks.faults import settings_or_exit
from tasks.specs import DERENDER_ALONE_TASK, DERENDER_TASK, FOLLOW_TASK, RENDER_TASK
from workers.derender.follow import Followers
from workers.derender.task import derender, derender_alone
from workers.models.catalog import Catalog
from workers.models.check import model_faults
from workers.render.task import render
from workers.runtime.celery_worker import serve
from workers.runtime.process import Runtime
from workers.runtime.stages import Task

settings = settings_or_exit()
threads = settings.workers.cpu_threads
app = create_app(settings, queues=cpu_queues(), slots=threads)
catalog = Catalog(settings)
followers: Followers
runtime = Runtime(
    settings,
    app,
    "cpu",
    queues=cpu_queues(),
    models=[model.name for model in settings.models],
    threads=threads,
    detail=lambda: {"loaded": catalog.loaded, "streams": len(followers)},
)
followers = Followers(runtime, catalog)


serve(
    runtime,
    (
        Task(RENDER_TASK, compute=partial(render, runtime, catalog)),
        Task(DERENDER_TASK, compute=partial(derender, runtime, catalog)),
        Task(DERENDER_ALONE_TASK, compute=partial(derender_alone, runtime, catalog)),
        Task(FOLLOW_TASK, coroutine=followers.follow),
    ),
    checking=lambda: model_faults(settings),
    opening=catalog.preload,
)
