#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian 12 packages needed to build and test. Asks apt only for what is missing, so it can be run
# again at any time and needs no network when nothing is missing. Needs root, or sudo.
#   scripts/install-deps.sh [--build-only | --plugin-only] [--list]
#   --build-only    what building needs, without what tests need
#   --plugin-only   what building the plugin alone needs
#   --list          prints the packages and installs nothing
set -euo pipefail

plugin=(g++ cmake ninja-build binutils)
build=(
  g++ make cmake ninja-build ccache git pkg-config binutils
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler
  prometheus-cpp-dev libmicrohttpd-dev libgnutls28-dev zlib1g-dev libzstd-dev libisal-dev
  libyaml-cpp-dev libcrypt-dev libcurl4-openssl-dev
  libspdlog-dev libcli11-dev nlohmann-json3-dev libtomlplusplus-dev
  duktape-dev                                                 # draws the report's SVG files
  libslurm-dev                                                # SLURM's plugin interface (ncclscope_spank.so)
  libgtest-dev libgmock-dev libbenchmark-dev
)
check=(
  clang-14 clang-tidy-14 clang-format-14 libclang-rt-14-dev   # lint, libFuzzer
  prometheus                                                  # promtool; the server itself in end-to-end tests
  prometheus-alertmanager                                     # end-to-end tests of alerts; amtool checks its example
  python3 python3-prometheus-client python3-yaml              # repository checks, strict OpenMetrics parser
  python3-numpy                                               # simulation of the rule that finds drops of bandwidth
  python3-pip                                                 # NCCL and CUDA headers for the GPU test, as wheels
  curl procps openssl util-linux                              # TLS tests; setpriv: tests as another user
  chromium fonts-liberation                                   # the agent's page and dashboards in a real browser
  slurmctld slurmd slurm-client munge                         # a real SLURM in an end-to-end test
  systemd systemd-container debootstrap                       # the packages on a machine that a real systemd boots
  rpm                                                         # rpmbuild, for the .rpm packages
  buildah mmdebstrap                                          # container images, and the Debian they begin with
)
packages=("${build[@]}" "${check[@]}")
list=0
for argument in "$@"; do
  case $argument in
    --build-only) packages=("${build[@]}") ;;
    --plugin-only) packages=("${plugin[@]}") ;;
    --list) list=1 ;;
    *) echo "install-deps.sh: unknown argument '$argument'; see the head of the script" >&2; exit 2 ;;
  esac
done
if [ "$list" -eq 1 ]; then
  printf '%s\n' "${packages[@]}"
  exit 0
fi

if ! command -v apt-get >/dev/null; then
  echo "install-deps.sh: no apt-get here; this script knows Debian 12 only. Install by hand:" >&2
  printf '  %s\n' "${packages[*]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "install-deps.sh: all ${#packages[@]} packages are installed"
  exit 0
fi

root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install-deps.sh: root or sudo is needed to install: ${missing[*]}" >&2
    exit 1
  fi
  root=(sudo)
fi
echo "install-deps.sh: installing ${missing[*]}"
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
