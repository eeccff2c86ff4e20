#!/usr/bin/env bash
# Bazel's way to a program that wants the real model: "$1" on its directory, which lies in the user's cache.
set -euo pipefail
export HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
model=$("$(readlink -f tools/fetch-smollm2)")
exec "$1" "$model" "${@:2}"
