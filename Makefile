# make demo    install into .venv and run the whole chain on the built-in sample
# make test    install into .venv and pass the tests
# Both create .venv themselves; PYTHON names the interpreter to make it with.

PYTHON ?= python3
VENV ?= .venv
GAUDI_VENV ?= .venv-gaudi

.PHONY: demo test test-gaudi lint crashes churn real-text

demo: $(VENV)/.installed
	$(VENV)/bin/sahajflow run demo

test: $(VENV)/.installed
	$(VENV)/bin/python -m pytest

# What runs on a Gaudi host runs on transformers 4.55: the stages' tests again, in the environment of the extra, and the
# engine gaudi, whose checkpoint the other environment evaluates. But for the swarms of modules that use nothing of transformers.
test-gaudi: $(GAUDI_VENV)/.installed $(VENV)/.installed
	SAHAJFLOW_CORE_PYTHON=$(VENV)/bin/python $(GAUDI_VENV)/bin/python -m pytest tests/tasks tests/eval \
		$(patsubst %,--ignore=tests/tasks/pretraining/collaborative/test_%.py,hostile optimizer revoked roles shaped_networks)

lint: $(VENV)/.installed
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

# The demo made small, to its end through 50 times kill -9: six minutes on two cores. The tests make 8 of them.
crashes: $(VENV)/.installed
	$(VENV)/bin/python -P tests/flows/crash_run.py

# The figures of docs/results.md, over the project's real Bengali data: about an hour on two cores.
real-text: $(VENV)/.installed
	$(VENV)/bin/sahajflow run tests/recipes/real-text.yaml

# What a collaboration survives, in its long form: docs/organiser.md. One of its three runs takes ten minutes by itself.
churn: $(VENV)/.installed
	$(VENV)/bin/python benchmarks/churn.py

$(VENV)/.installed: EXTRAS = dev
$(VENV)/.installed: CONSTRAINTS = constraints.txt
$(GAUDI_VENV)/.installed: EXTRAS = dev,gaudi
$(GAUDI_VENV)/.installed: CONSTRAINTS = constraints-gaudi.txt

%/.installed: pyproject.toml constraints.txt constraints-gaudi.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "sahajflow needs Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	@test "$$(uname -sm)" = "Linux x86_64" || echo "hivemind has no wheel for $$(uname -sm): of the engines, local works here."
	test -x $*/bin/python || $(PYTHON) -m venv $*
	$*/bin/python -m pip install --quiet --upgrade pip
	$*/bin/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[$(EXTRAS)]'
	touch $@
