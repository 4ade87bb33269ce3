#!/usr/bin/env bash
# Fuzzes every reader of what comes from outside under AddressSanitizer and
# UndefinedBehaviorSanitizer, two at a time.
#
#   tests/fuzz/run.sh [RUNS [LETTERS]]    default: 20000 runs of each reader; of these letters
#                                         alone (readers/reader.cpp)
#   tests/fuzz/run.sh --pack              minimises what was found and replaces corpus.tar.xz by it
#
# Needs clang. A fiftieth of the runs may have inputs of up to 1 MB. Inputs that reach new code are kept in
# build/fuzz/corpus for the next run; one that crashes, hangs or takes over 1 GB is kept in build/fuzz/found,
# which ends the runs of its reader, and the exit code is then not 0. `build/fuzz/tests/reader_fuzz FILE` runs
# it again. README.md says more.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."
folder=build/fuzz
export PYTHONPATH=tests OMP_NUM_THREADS=1 UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=malloc_context_size=5
fuzzer=$folder/tests/reader_fuzz

cmake --preset fuzz
cmake --build --preset fuzz --parallel 2 --target reader_fuzz reader_replay kvbound
mapfile -t letters < <(if (($# == 2)); then grep -o . <<<"$2"; else $folder/tests/reader_replay | cut -c1; fi)

if [[ ${1:-} == --pack ]]; then
  rm -rf $folder/minimal
  for letter in "${letters[@]}"; do
    mkdir -p $folder/minimal/"$letter"
    "$fuzzer" -set_cover_merge=1 -timeout=10 -rss_limit_mb=2048 $folder/minimal/"$letter" $folder/{seeds,corpus}/"$letter" 2>$folder/logs/merge-"$letter"
  done
  exec /usr/bin/python3 tests/fuzz/corpus.py pack $folder/{minimal,found}
fi

runs=${1:-20000}
mkdir -p $folder/{found,logs}
/usr/bin/python3 tests/fuzz/write_corpus.py $folder/kvbound $folder/seeds
[[ ! -e tests/fuzz/corpus.tar.xz ]] || /usr/bin/python3 tests/fuzz/corpus.py unpack $folder/corpus

# fuzz LETTER RUNS LENGTH: prints the letter, the inputs' greatest length, how many were run, how many a
# second, how many edges of the program's graph that makes, and what it found.
fuzz() {
  local log=$folder/logs/$1-$3 status=0
  mkdir -p $folder/corpus/"$1"
  "$fuzzer" -runs="$2" -max_len="$3" -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=512 -dict=$folder/seeds/dictionary -print_final_stats=1 \
    -print_funcs=0 -entropic=0 -artifact_prefix=$folder/found/"$1-" $folder/{corpus,seeds}/"$1" 2>"$log" || status=$?
  printf '%s %7d %9s %6s %6s %s\n' "$1" "$3" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
    "$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")" "$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)" \
    "$(grep -ahE 'ERROR|runtime error|not one line|does not hold|Test unit written' "$log" | head -3 | tr '\n' ' ')"
  return "$status"
}

# Two runs at a time, or $JOBS.
export -f fuzz
export folder fuzzer
echo "reader, longest input, runs, runs a second, edges"
for letter in "${letters[@]}"; do
  printf '%s %d 4096\n%s %d 1000000\n' "$letter" $((runs - runs / 50)) "$letter" $((runs / 50))
done | xargs -P "${JOBS:-2}" -L 1 bash -c 'fuzz "$@"' fuzz || { echo "some runs ended early" >&2 && exit 1; }
