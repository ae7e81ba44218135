"""The Celery application for Flower: `celery -A api.flower flower`."""

from __future__ import annotations

from tasks.broker.app import create_app
from tasks.faults import settings_or_exit

app = create_app(settings_or_exit())
