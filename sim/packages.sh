# shellcheck shell=bash disable=SC2034
# Sourced by sim/quickstart.sh and tests/run.sh. Package names are those of Debian 12 and Ubuntu 24.04.

build_packages=(g++ cmake ninja-build libopenblas-dev libboost-program-options-dev libfmt-dev libssl-dev
                libeigen3-dev libmpfr-dev libminizip-dev zlib1g-dev nlohmann-json3-dev librapidcheck-dev)
test_packages=(libgtest-dev libgmock-dev python3 python3-numpy python3-jsonschema clang-format-14)
kernel_packages=(python3-venv)  # of the tests labelled kernels, in addition
python_packages=(python3-venv python3-dev)  # of the tests labelled python
ci_packages=(ccache)  # of .ci/run, in addition
coq_packages=(coq libcoq-mathcomp-algebra libcoq-mathcomp-algebra-tactics)  # of the tests labelled coq
browser_packages=(chromium chromium-driver fonts-dejavu-core)  # of the tests labelled browser
race_packages=(clang libclang-rt-dev libomp-dev)  # of the tests labelled races
slurm_packages=(slurmctld slurmd slurm-client munge)  # of the tests labelled slurm

# Kernels are compiled by nvcc for the GPUs of this machine, if it has one. Hopper's own instructions need
# 90a, which CMake's "native" leaves out.
if capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) && [[ -n $capabilities ]]; then
  architectures=$(sort -u <<<"${capabilities//./}" | sed 's/^90$/90a/; s/$/-real/' | paste -sd ';')
  for_its_gpu=(-D KVBOUND_CUDA=ON -D KVBOUND_CUDA_ARCHITECTURES="$architectures")
else
  for_its_gpu=(-D KVBOUND_CUDA=OFF)
fi

jobs=$(($(nproc) + 1))  # side by side: compilers and tests wait for files now and then

# fail MESSAGE [STATUS]: prints the message and exits.
fail() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit "${2:-1}"
}

# run COMMAND...: prints and runs the command, and how long it took; exits if it fails.
run() {
  local start=$SECONDS
  printf '\n$ %s\n' "$*" >&2
  "$@" || fail "this step failed with status $?: $*" $?
  ((SECONDS - start < 10)) || printf 'took %d s: %s\n' $((SECONDS - start)) "$*" >&2
}

# install_missing PACKAGE...: installs the packages that are missing; does not call apt if none is.
install_missing() {
  if ! command -v dpkg-query >/dev/null; then
    printf 'Neither Debian nor Ubuntu: taken to be installed already, under whatever names: %s\n' "$*" >&2
    return
  fi

  local installed package missing=()
  # dpkg-query fails if it does not know one of the packages, but it lists the others.
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null) || true
  for package; do
    grep -qxF "installed $package" <<<"$installed" || missing+=("$package")
  done
  if ((${#missing[@]} == 0)); then
    return
  fi

  printf 'Missing packages: %s\n' "${missing[*]}" >&2
  ((EUID == 0)) || command -v sudo >/dev/null || fail "neither root nor sudo; as root: apt-get install ${missing[*]}"
  as_root apt-get update
  # A fresh machine may still be updating itself, so wait for the lock.
  as_root apt-get install --yes --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}"
}

as_root() {
  local sudo=()
  ((EUID == 0)) || sudo=(sudo)
  run "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive "$@"
}

# Unpacks D3, a file of Debian's package node-d3, into build/node-d3: installed, it would bring 37
# packages of Node.js along.
fetch_d3() {
  if [[ -e /usr/share/nodejs/d3/dist/d3.min.js || -e build/node-d3/usr/share/nodejs/d3/dist/d3.min.js ]]; then
    return
  fi
  command -v apt-get >/dev/null || fail "D3 is missing: /usr/share/nodejs/d3/dist/d3.min.js, of Debian's package node-d3"
  rm -rf build/node-d3{,.part} && mkdir -p build/node-d3.part
  local download=(env --chdir=build/node-d3.part apt-get download node-d3)
  "${download[@]}" >&2 || {
    as_root apt-get update >&2
    run "${download[@]}" >&2
  }
  run dpkg-deb --extract build/node-d3.part/node-d3_*.deb build/node-d3.part
  mv build/node-d3.part build/node-d3
}
