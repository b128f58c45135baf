.DEFAULT_GOAL := help
# Not PYTHON: that variable tells scripts/setup with which Python it makes .venv.
VENV_PYTHON := .venv/bin/python
# Tests start hundreds of Python processes: without compiled modules each would compile them all anew.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(VENV_PYTHON) -m pytest
WORKERS := 4
SHORT := not chaos and not scale and not cluster

.PHONY: help run up setup dev cluster cluster-setup cluster-test test test-quick test-long test-storm test-chaos test-scale test-fuzz test-browser test-docs dashboard-vendor dashboard-types model check format bench bench-fleet bench-scheduler bench-host lock dist generated docs site proto proto-check client clean

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

run: setup  ## Run a real training job through an XID fault, watch it, and leave nothing behind
	@. .venv/bin/activate && exec python -m workers.local.up --demo

up: setup  ## Start the whole platform on this machine and stay up (Ctrl-C ends it)
	@. .venv/bin/activate && exec python -m workers.local.up

setup:
	@scripts/setup

dev:
	@scripts/setup --dev

# Most tests wait rather than work. A file's tests stay together, since they share clusters; tests/conftest.py orders them.
test: dev  ## Run the tests (those with real processes too; WORKERS=N at once)
	@$(PYTEST) -m "not long and not browser and $(SHORT)" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-quick: dev  ## Run the unit and property tests that start no process: in less than a minute, for every save
	@GPU_PLATFORM_EXAMPLES=quick $(PYTEST) tests/unit tests/property -m "not long and not processes and $(SHORT)" \
		-n 2 --dist loadfile --no-loadscope-reorder

test-long: dev  ## Run the tests that take long, all examples of properties, and the pages in a real Chromium
	@GPU_PLATFORM_EXAMPLES=all $(PYTEST) -m "(long or browser or hypothesis) and $(SHORT)" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-storm: dev  ## Run the short storms of make test alone, and print what they did
	@$(PYTEST) -m storm -s

CHAOS_REPORT := .chaos-report.jsonl
test-chaos: dev  ## Run the long tests that break everything at random (FOR=20m: so long for each database)
	@: > $(CHAOS_REPORT)
	@GPU_PLATFORM_CHAOS_SECONDS=$(or $(FOR),$(GPU_PLATFORM_CHAOS_SECONDS),120) \
		GPU_PLATFORM_CHAOS_REPORT=$(CURDIR)/$(CHAOS_REPORT) $(PYTEST) -m chaos -s; \
		code=$$?; $(VENV_PYTHON) -m tests.chaos.report $(CHAOS_REPORT); exit $$code

cluster-setup: dev  ## Build a real Temporal server into the user's cache, once (needs Go; minutes)
	@$(VENV_PYTHON) -m tests.real_cluster.binaries

cluster: dev  ## Start a real cluster on this machine and stay up: Temporal in six processes, two PostgreSQL, two of each of ours
	@. .venv/bin/activate && exec python -m tests.real_cluster

cluster-test: dev  ## Kill each process of a real cluster under a stream of submissions (minutes), and print the gaps
	@$(PYTEST) -m cluster -s

test-scale: dev  ## Run the long tests with many jobs and hosts
	@$(PYTEST) -m scale

test-browser: dev  ## Look at the dashboard with a real Chromium, and print how long it took
	@$(PYTEST) -m browser --durations=5

test-docs: dev  ## Follow every page of the docs, the long ones too (minutes; as root all), and build the site
	@$(PYTEST) -n0 tests/unit/docs tests/integration/test_docs.py tests/integration/test_docs_on_machines.py --durations=5

test-fuzz: dev  ## Ask the service what its description allows and forbids, as each role (FOR=600: seconds for each, and a minute or two)
	@GPU_PLATFORM_FUZZ_SECONDS=$(or $(FOR),120) $(PYTEST) -n0 -m scale tests/fuzz

model: dev  ## Explore the lease protocol: every order of messages, losses, restarts (minutes)
	@$(PYTEST) -s -m scale tests/model

check: dev  ## Lint, format, types, import directions
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/basedpyright
	@.venv/bin/lint-imports

format: dev  ## Mend what ruff can mend
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

bench-host: dev  ## Measure what a GPU host costs: start, stop, isolation, health
	@$(VENV_PYTHON) -m tests.benchmarks hosts health

bench: dev  ## Measure and print (ONLY="store hosts" chooses)
	@$(VENV_PYTHON) -m tests.benchmarks $(ONLY)

bench-fleet: dev  ## Measure a thousand simulated hosts, about an hour (ARGS="--hosts 100 --jobs 400 --waiting 500 --minutes 1": less)
	@. .venv/bin/activate && exec python -m tests.benchmarks.bench_fleet $(ARGS)

bench-scheduler: dev  ## Measure what deciding costs and how well it decides (TRACES=DIR: on real traces; no servers)
	@$(VENV_PYTHON) -m tests.benchmarks.bench_scheduling
	@$(VENV_PYTHON) -m tests.benchmarks.bench_simulation
	@$(VENV_PYTHON) -m tests.benchmarks.bench_packing

# One version of each package for every Python that pyproject.toml allows.
COMPILE := .venv/bin/uv pip compile --quiet pyproject.toml requirements/build.in \
	--extra cluster --extra examples --extra tracing --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
	--no-emit-index-url --no-header --custom-compile-command "make lock"
lock: dev  ## Resolve pyproject.toml into requirements/*.lock (UPGRADE=--upgrade renews all)
	@$(COMPILE) $(UPGRADE) -o requirements/runtime.lock
	@$(COMPILE) $(UPGRADE) --extra dev --extra docs --constraint requirements/runtime.lock -o requirements/dev.lock

dist: dev  ## Build the sdist and both wheels, gpu-platform and gpu-platform-cluster, into dist/
	@.venv/bin/uv build --quiet --no-build-isolation --python $(VENV_PYTHON)
	@.venv/bin/uv build --quiet --no-build-isolation --python $(VENV_PYTHON) --wheel --out-dir dist deploy/cluster

generated: client proto docs  ## Write all files that are generated (.gitattributes names them)
	@$(VENV_PYTHON) scripts/gen_dashboards.py
	@.venv/bin/gpu-platform alerts rules >deploy/prometheus/alerts.yaml

docs: dev  ## Write docs/reference, and docs/man (man pages of all commands), from the code
	@$(VENV_PYTHON) scripts/gen_reference.py
	@$(VENV_PYTHON) scripts/gen_man.py

site: dev  ## Build the docs as a site into build/site; open index.html there (no server needed)
	@NO_MKDOCS_2_WARNING=1 $(VENV_PYTHON) -m mkdocs build --strict --quiet
	@echo build/site/index.html

proto: dev  ## Write proto/, and Python stubs for gRPC, from the REST description
	@$(VENV_PYTHON) -m scripts.gen_proto

proto-check: dev  ## Compare proto/ with the last release: does anything break its clients?
	@$(VENV_PYTHON) -m scripts.check_proto

client: dev  ## Write the client without asyncio from the one with it
	@$(VENV_PYTHON) scripts/gen_client.py

dashboard-vendor: dev  ## Fetch the dashboard's libraries again (needs npm)
	@$(VENV_PYTHON) scripts/vendor_dashboard.py

# Not a part of `make check`, which needs nothing but Python.
dashboard-types:  ## Check the types of the dashboard's JavaScript (needs npm; without it nothing is checked)
	@if command -v npm >/dev/null; then cd scripts/dashboard_types && npm ci --silent --no-audit --no-fund && npm run --silent check; \
		else echo "skipped: there is no npm here (Debian: apt-get install npm)"; fi

clean:  ## Remove what was built and what `make up` left (not .venv)
	rm -rf .gpu-platform build dist deploy/cluster/build *.egg-info deploy/cluster/*.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
