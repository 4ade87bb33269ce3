#!/usr/bin/env bash
# How long a newcomer and everyone who works here waits: builds and tests a fresh clone, and prints a table of minutes. Takes
# about an hour and a half of a machine with nothing else to do. ccache's own cache is not touched.
#
# usage: tests/times.sh [WHAT...]      WHAT: quickstart tests unit ci ci-warm; all by default
set -euo pipefail
root=$(dirname "$(dirname "$(realpath "$0")")")
work=$(mktemp -d "${TMPDIR:-/tmp}/kvbound-times-XXXXXX")
trap 'rm -rf "$work"' EXIT
export CCACHE_DIR=$work/ccache

# fresh: a new clone, as the working folder; the recordings that tests may use beside it, if they are beside the checkout.
fresh() {
  rm -rf "$work/clone"
  [[ ! -d $root/../shared ]] || ln -sfn "$(realpath "$root/../shared")" "$work/shared"
  git clone --quiet "$root" "$work/clone"
  cd "$work/clone"
}

told() { printf '%-44s %3d:%02d\n' "$1" $(($2 / 60)) $(($2 % 60)); }

# timed NAME COMMAND...: prints the minutes that a command took.
timed() {
  local name=$1 start=$SECONDS
  shift
  "$@" >"$work/log" 2>&1 || printf '%s: failed: %s\n' "$name" "$(tail -1 "$work/log")"
  told "$name" $((SECONDS - start))
}

measure_quickstart() {
  local start=$SECONDS line first=
  rm -rf "$CCACHE_DIR" && fresh
  while IFS= read -r line; do
    [[ $line != policy* || -n $first ]] || { first=1 && told "quickstart: first table" $((SECONDS - start)); }
  done < <(sim/quickstart.sh 2>"$work/log")
  told "quickstart: whole" $((SECONDS - start))
  [[ -e build/quickstart/report.html ]] || echo "quickstart failed: $(tail -1 "$work/log")"
  printf '%-44s %s\n' "build/quickstart" "$(du -sh build/quickstart | cut -f 1)"
}

measure_tests() {
  rm -rf "$CCACHE_DIR" && fresh
  timed "tests/run.sh, fresh" tests/run.sh
}

measure_unit() {
  [[ -d $work/clone/build/tests ]] || measure_tests
  cd "$work/clone"
  echo "// one more line" >>reference/attention.cpp
  timed "tests/run.sh -L unit, after one changed line" tests/run.sh -L unit
}

measure_ci() {
  rm -rf "$CCACHE_DIR" && fresh
  timed ".ci/run, cold" .ci/run
}

measure_ci_warm() {
  [[ -d $CCACHE_DIR ]] || measure_ci
  fresh
  timed ".ci/run, with a warm cache" .ci/run
}

for what in "${@:-quickstart tests unit ci ci-warm}"; do
  for one in $what; do
    "measure_${one//-/_}"
  done
done
