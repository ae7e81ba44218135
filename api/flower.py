"""The Celery application for Flower: `celery -A api.flower flower`."""

from __future__ import annotations

from tasks.broker.app import create_app
from tasks.settings import load_settings

app = create_app(load_settings())
