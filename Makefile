# Each line calls one driver verb in .venv, which the first call creates. More words: make demo ARGS="--help"
PYTHON ?= python3
BUNDLE = $(PYTHON) tools/bootstrap.py

.PHONY: help demo test bench lint soak
help:
	@echo 'make demo    build, check, publish to a Hub on this machine, fetch, train three small models'
	@echo 'make test    lint, the driver, the bundle on every instruction set of this CPU, the whole road'
	@echo 'make bench   times, beside what a user could write instead'
	@echo 'make lint    formatters, types, the tables of the documents'
	@echo 'make soak    half an hour of random calls under address and undefined-behaviour checks'
	@echo 'More verbs and options: .venv/bin/python -m bundle --help'
demo:  ; @$(BUNDLE) demo $(ARGS)
test:  ; @$(BUNDLE) test $(ARGS)
bench: ; @$(BUNDLE) bench $(ARGS)
lint:  ; @$(BUNDLE) lint $(ARGS)
soak:  ; @$(BUNDLE) soak $(ARGS)
