# The first Python 3.11+ that really starts: a shim on the PATH may have nothing behind it.
BASE := $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,$(shell $(p) -c 'import sys, venv; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))
PY := .venv/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check -c requirements.lock
# A file's tests stay together: they share the processes that they start.
TESTS := $(PY) -m pytest -n 2 --dist loadfile
# What `make record` asks the reference anew.
MODULES := tests/peer

.PHONY: demo up test check peer smoke record fuzz chaos fix bench lock clean

demo: .venv/.demo
	.venv/bin/tokenyard demo

up: .venv/.demo
	.venv/bin/tokenyard up

test: .venv/.dev
	$(TESTS)

check: .venv/.dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(TESTS)

# The reference itself answers, for all that is compared with it: half an hour, where it is installed.
peer: .venv/.dev
	$(PY) -m pytest --peer=live tests/peer

smoke: .venv/.dev
	$(PY) -m pytest --peer=live -m peer_smoke tests/peer

record: .venv/.dev
	$(PY) -m pytest --peer=record $(MODULES)

# Ten minutes of bodies that may be wrong in any way, then ten of requests made from the API's own description.
fuzz: .venv/.dev
	TOKENYARD_FUZZ_S=600 $(PY) -m pytest tests/fuzz

# A minute in which everything is killed at random, under two hundred streams and two hundred jobs.
chaos: .venv/.dev
	TOKENYARD_CHAOS_S=60 TOKENYARD_CHAOS_JOBS=200 $(PY) -m pytest tests/chaos

fix: .venv/.dev
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

bench: .venv/.dev
	$(PY) -m tests.bench

lock: .venv/.dev
	$(PY) -m pip install --quiet uv
	$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --extra dev --no-header pyproject.toml -o requirements.lock

clean:
	rm -rf .venv .tokenyard

.venv/.created:
	@test -n "$(BASE)" || { echo "Tokenyard needs Python 3.11 or newer with its venv module."; exit 1; }
	$(BASE) -m venv .venv
	touch $@

.venv/.demo: .venv/.created pyproject.toml requirements.lock
	$(PIP) -e '.[demo]'
	touch $@

.venv/.dev: .venv/.created pyproject.toml requirements.lock
	$(PIP) -e '.[dev]'
	touch $@ .venv/.demo
