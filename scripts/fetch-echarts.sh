#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings Apache ECharts (from npm, 12 MB, Apache-2.0), which draws the pictures of `ncclscope report`, once. Its folder is printed;
# the report, its tests and the build look there. Needs npm.
#   scripts/fetch-echarts.sh
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

version=6.1.0  # also in cli/report/CMakeLists.txt and cmake/NcclscopeInstall.cmake
sha256=b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0
folder=$cache/echarts-$version

if [ ! -e "$folder/echarts.min.js" ]; then
  make_work
  npm_pack "echarts@$version"
  tar -xzf "$work"/echarts-*.tgz -C "$work" package/dist/echarts.min.js package/LICENSE package/NOTICE
  echo "$sha256  $work/package/dist/echarts.min.js" | sha256sum --check --quiet
  mkdir -p "$work/echarts"
  cp "$work/package/LICENSE" "$work/package/NOTICE" "$work/echarts/"
  cp "$work/package/dist/echarts.min.js" "$work/echarts/"
  rm -rf "$folder"
  mv "$work/echarts" "$folder"
fi
echo "$folder"
