# Each line calls one driver verb in .venv, which the first call creates. More words: make demo ARGS="--help"
PYTHON ?= python3
BUNDLE = $(PYTHON) tools/bootstrap.py

.PHONY: demo test bench lint soak
demo:  ; @$(BUNDLE) demo $(ARGS)
test:  ; @$(BUNDLE) test $(ARGS)
bench: ; @$(BUNDLE) bench $(ARGS)
lint:  ; @$(BUNDLE) lint $(ARGS)
soak:  ; @$(BUNDLE) soak $(ARGS)
