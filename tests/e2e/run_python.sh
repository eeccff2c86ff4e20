#!/usr/bin/env bash
# Bazel's way to a Python test: the first argument is the script, beside which its modules lie.
exec python3 -B "$@"
