{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* What both policies add to a container, and to which. Never where the user has chosen a profiler. */}}

{{- define "ncclscope.pluginFile" -}}
/usr/lib/ncclscope/libnccl-profiler-ncclscope.so
{{- end -}}

{{/* CEL: whether container c gets the plugin. */}}
{{- define "ncclscope.celWants" -}}
!(has(c.env) && c.env.exists(e, e.name == "NCCL_PROFILER_PLUGIN"))
{{- if not .Values.injection.withEnvFrom }} &&
!(has(c.envFrom) && size(c.envFrom) > 0)
{{- end }}
{{- if eq .Values.injection.containers "gpu" }} &&
has(c.resources) && (
  (has(c.resources.limits) && c.resources.limits.exists(r, r.startsWith("nvidia.com/"))) ||
  (has(c.resources.claims) && size(c.resources.claims) > 0))
{{- end }}
{{- end -}}

{{/* The same as preconditions of Kyverno. */}}
{{- define "ncclscope.kyvernoWants" -}}
- key: NCCL_PROFILER_PLUGIN
  operator: AnyNotIn
  value: {{ "\"{{ element.env[].name || `[]` }}\"" }}
{{- if not .Values.injection.withEnvFrom }}
- key: {{ "\"{{ length(element.envFrom || `[]`) }}\"" }}
  operator: Equals
  value: 0
{{- end }}
{{- end -}}

{{- define "ncclscope.kyvernoHasGpu" -}}
{{- if eq .Values.injection.containers "gpu" }}
any:
  - key: {{ "\"{{ length(keys(element.resources.limits || `{}`)[?starts_with(@, 'nvidia.com/')]) }}\"" }}
    operator: GreaterThan
    value: 0
  - key: {{ "\"{{ length(element.resources.claims || `[]`) }}\"" }}
    operator: GreaterThan
    value: 0
{{- end }}
{{- end -}}
