// SPDX-License-Identifier: Apache-2.0
// Checks manifests against the models of Kubernetes, the Prometheus Operator and Kyverno: required fields, types, patterns.
//   node validate.mjs <file.json     a JSON list of manifests; prints one line per finding, and nothing when all is well
// Unknown fields pass here: chart.py has TypeScript look for those.
import {readFileSync} from 'node:fs';

const packages = {
  'monitoring.coreos.com': '@kubernetes-models/prometheus-operator',
  'kyverno.io': '@kubernetes-models/kyverno',
};
const manifests = JSON.parse(readFileSync(0, 'utf8'));
for (const [index, manifest] of manifests.entries()) {
  const {apiVersion, kind} = manifest;
  const group = apiVersion.includes('/') ? apiVersion.split('/')[0] : '';
  const name = `${index}: ${kind} ${manifest.metadata?.name}`;
  try {
    const module = await import(`${packages[group] ?? 'kubernetes-models'}/${apiVersion}/${kind}`);
    new module[kind](manifest).validate();
  } catch (error) {
    console.log(`${name}: ${error.message}`);
  }
}
