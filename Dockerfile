# syntax=docker/dockerfile:1
# Three images: api, cpu and gpu. Each contains only what its processes need.

FROM python:3.12-slim AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --create-home --uid 1000 tokenyard
WORKDIR /home/tokenyard
ENTRYPOINT ["tokenyard"]

FROM base AS wheel
COPY pyproject.toml README.md /source/
COPY api /source/api
COPY tasks /source/tasks
COPY workers /source/workers
RUN pip wheel --no-deps --wheel-dir /wheels /source

# The API and the console script; Flower runs from this image too.
FROM base AS api
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=bind,source=requirements.lock,target=/requirements.lock \
    pip install -c /requirements.lock "$(echo /wheels/*.whl)[api,flower]"
USER tokenyard
EXPOSE 8000
CMD ["api", "--host", "0.0.0.0"]

# Renders and derenders: tokenizers, chat templates, parsers.
FROM base AS cpu
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=bind,source=requirements.lock,target=/requirements.lock \
    pip install -c /requirements.lock "$(echo /wheels/*.whl)[cpu]"
RUN install --directory --owner tokenyard /models
ENV HF_HOME=/models/huggingface TOKENIZERS_PARALLELISM=false
USER tokenyard
VOLUME /models
CMD ["worker", "cpu"]

# Calls engines over HTTP; it needs no GPU itself.
FROM base AS gpu
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=bind,source=requirements.lock,target=/requirements.lock \
    pip install -c /requirements.lock "$(echo /wheels/*.whl)[gpu]"
USER tokenyard
CMD ["worker", "gpu"]
