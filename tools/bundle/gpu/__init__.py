"""The check that wants a GPU: builds for it, tests on it, times against torch's own kernels, all within minutes.

``check`` runs the phases, each a process with a limit; ``measure`` is the process that times, on ``machine`` what
``workloads`` lists; ``table`` is what comes last. Everything runs without a GPU too, emulated and tiny, so that the
first machine that has one does not spend its minutes on a typing error.
"""
