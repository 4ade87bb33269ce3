#!/usr/bin/env bash
# Fuzzes the readers of checkpoints, FlashInfer's dumps, token ids, traces and sweeps under AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   tests/fuzz/run.sh [SECONDS]      default: 600
#
# Needs clang. Inputs that reach new code are kept in build/fuzz/corpus for the next run; one that crashes, hangs or takes
# over 1 GB is kept in build/fuzz/found, and the exit code is then not 0. `build/fuzz/tests/reader_fuzz FILE` runs it again.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."

cmake --preset fuzz
cmake --build --preset fuzz --parallel 2 --target reader_fuzz kvbound
PYTHONPATH=tests /usr/bin/python3 tests/fuzz/write_corpus.py build/fuzz/kvbound build/fuzz/seeds
mkdir -p build/fuzz/corpus build/fuzz/found
OMP_NUM_THREADS=1 build/fuzz/tests/reader_fuzz -max_total_time="${1:-600}" -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=512 \
  -print_final_stats=1 -artifact_prefix=build/fuzz/found/ build/fuzz/corpus build/fuzz/seeds
