#!/usr/bin/env bash
# The installed package works from any folder: a program that finds it with find_package builds and runs, and
# needs no file of the source or build tree.
#
# usage: install_test.sh BUILD_DIR CXX_COMPILER      BUILD_DIR: a complete build; CXX_COMPILER: its compiler
set -euo pipefail
build=$(realpath "$1")
compiler=$2
source=$(dirname "$(realpath "$0")")
folder=$(mktemp -d "${TMPDIR:-/tmp}/kvbound-install-XXXXXX")
trap 'rm -rf "$folder"' EXIT

# cached NAME: the value of a cache variable of the build; the consumer shares its flags, such as sanitizers.
cached() {
  sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"
}

cmake --install "$build" --prefix "$folder/prefix" >"$folder/log"
mkdir "$folder/consumer"
cp "$source/CMakeLists.txt" "$source/main.cpp" "$folder/consumer"
cmake -S "$folder/consumer" -B "$folder/build" -G "$(cached CMAKE_GENERATOR)" -DCMAKE_PREFIX_PATH="$folder/prefix" \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE="$(cached CMAKE_BUILD_TYPE)" \
  -DCMAKE_CXX_FLAGS="$(cached CMAKE_CXX_FLAGS)" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
cmake --build "$folder/build"

echo "what each KV head keeps:"
(cd "$folder" && build/consumer | tee kept)
# Two KV heads keep ten positions each, ascending, among them the last four of 64.
if ! [[ $(wc -w <"$folder/kept") == 20 && $(grep -cx '\([0-9]* \)\{6\}60 61 62 63 ' "$folder/kept") == 2 ]]; then
  echo "expected 2 lines of 10 positions that end in 60 61 62 63" >&2
  exit 1
fi

"$folder/prefix/bin/kvbound" --version | tee "$folder/version"
grep -q '^kvbound [0-9.]* (.*)$' "$folder/version"

# No installed file may name the build tree or the source tree.
for tree in "$build" "$(dirname "$(dirname "$source")")"; do
  if grep -rlF "$tree/" "$folder/prefix" --include='*.cmake' --include='*.hpp' ||
    grep -F "$tree/" "$folder/build/compile_commands.json"; then
    echo "the installed package refers to $tree" >&2
    exit 1
  fi
done

# Exactly the public headers are installed: a header that no list of kvbound_public_headers names is private.
(cd "$folder/prefix/include/kvbound" && find . -type f | sed 's|^\./||' | sort) >"$folder/installed"
if ! diff <(sort "$build/public_headers.txt") "$folder/installed"; then
  echo "left: the public headers (kvbound_public_headers); right: what was installed" >&2
  exit 1
fi
for private in reference/numerics/instruction_set.hpp reference/bounds/softmax_errors.hpp cuda/primitives/kernel.hpp \
  cuda/emulation/block.hpp sim/options/command_line.hpp sim/cli/prove/counterexample.hpp proofs/engine/theorem.hpp; do
  if [[ ! -e $(dirname "$(dirname "$source")")/$private ]]; then
    echo "$private, which must not be installed, is not in the source tree" >&2
    exit 1
  fi
  if grep -qx "$private" "$folder/installed"; then
    echo "$private was installed" >&2
    exit 1
  fi
done
if grep -rli 'not a public header' "$folder/prefix/include"; then
  echo "these say of themselves that they are not public" >&2
  exit 1
fi

# Every public header compiles on its own, with only the package and its dependencies.
mkdir "$folder/alone"
number=0
while read -r header; do
  number=$((number + 1))
  printf '#include <kvbound/%s>\n#include <kvbound/%s>\n' "$header" "$header" >"$folder/alone/$number.cpp"
done <"$folder/installed"
[[ $number -gt 50 ]]
find "$folder/alone" -name '*.cpp' -print0 | xargs -0 -n 8 -P 2 \
  "$compiler" -std=c++20 -fsyntax-only -Wall -Wextra -Werror -I "$folder/prefix/include"
