#!/usr/bin/env bash
# What a few minutes on a GPU can prove: builds for it, tests on it, times against torch's own kernels; the table comes
# last. Needs python3 with torch, pytest, rich, cmake and ninja, a C++ compiler and nvcc; asks no network.
# `--emulated` goes the same road without a GPU. Logs and rows lie in .bundle/gpu, or where `--results DIR` says.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHONPATH="tools${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 exec "${PYTHON:-python3}" -m bundle gpu "$@"
