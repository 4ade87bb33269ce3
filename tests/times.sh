#!/usr/bin/env bash
# How long a newcomer and everyone who works here waits: builds and tests a fresh clone of what is
# committed, and prints a table of minutes. Takes about four hours of a machine with nothing else to do.
# ccache's own cache is not touched.
#
# usage: tests/times.sh [WHAT...]      WHAT: quickstart tests unit ci-0 ci-1 ci-2 ci-3 ci-4; all by default
set -euo pipefail
root=$(dirname "$(dirname "$(realpath "$0")")")
work=$(mktemp -d "${TMPDIR:-/tmp}/kvbound-times-XXXXXX")
trap 'rm -rf "$work"' EXIT
export CCACHE_DIR=$work/ccache

# fresh: a new clone, as the working folder; the recordings that tests may use beside it, if they
# are beside the checkout.
fresh() {
  cd "$work"
  rm -rf clone
  [[ ! -d $root/../shared ]] || ln -sfn "$(realpath "$root/../shared")" shared
  git clone --quiet "$root" clone
  cd clone
}

told() { printf '%-44s %3d:%02d\n' "$1" $(($2 / 60)) $(($2 % 60)); }

# timed NAME COMMAND...: prints the minutes that a command took; if it fails, the end of
# what it printed, and exits.
timed() {
  local name=$1 start=$SECONDS
  shift
  "$@" >"$work/log" 2>&1 || {
    tail -40 "$work/log" >&2
    printf '%s: failed\n' "$name" >&2
    exit 1
  }
  told "$name" $((SECONDS - start))
  sed -n 's/^took /  of these /p' "$work/log"
}

# until_table: prints when the first table begins.
until_table() {
  local line
  while IFS= read -r line; do
    [[ $line != policy* ]] || { told "quickstart: first table" $((SECONDS - $1)) && break; }
  done
  cat >/dev/null
}

measure_quickstart() {
  rm -rf "$CCACHE_DIR" && fresh
  timed "quickstart: whole" bash -o pipefail -c 'sim/quickstart.sh | tee "$0"' >(until_table $SECONDS)
  printf '%-44s %6s\n' "build/quickstart" "$(du -sh build/quickstart | cut -f 1)"
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

# measure_ci PART: what continuous integration runs with this one of the parts that take turns, without and
# with a cache.
measure_ci() {
  local cache
  rm -rf "$CCACHE_DIR"
  for cache in cold warm; do
    fresh
    until (($(git rev-list --count HEAD) % 5 == $1)); do
      GIT_COMMITTER_DATE=$(git log -1 --format=%cI) \
        git -c user.name=times -c user.email=times commit --quiet --allow-empty --message "One more"
    done
    timed ".ci/run, part $1, $cache cache" .ci/run
  done
}

(($# > 0)) || set -- quickstart tests unit ci-0 ci-1 ci-2 ci-3 ci-4
for what; do
  [[ $what == ci-[0-4] ]] || declare -F "measure_$what" >/dev/null || { sed -n '/^# usage/s/# //p' "$root/tests/times.sh" >&2 && exit 2; }
done
for what; do
  measure_"${what%%-*}" "${what#ci-}"
done
