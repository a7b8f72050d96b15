{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- define "ncclscope.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "ncclscope.fullname" -}}
{{- $name := include "ncclscope.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Never the chart's version: a DaemonSet's selector cannot change. */}}
{{- define "ncclscope.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ncclscope.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: agent
{{- end -}}

{{- define "ncclscope.labels" -}}
{{ include "ncclscope.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: ncclscope
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "ncclscope.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "ncclscope.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Arguments: root, name, digest. */}}
{{- define "ncclscope.image" -}}
{{- $image := .root.Values.image -}}
{{- $path := ternary .name (printf "%s/%s" (trimSuffix "/" $image.registry) .name) (empty $image.registry) -}}
{{- if .digest -}}
{{- printf "%s@%s" $path .digest -}}
{{- else -}}
{{- printf "%s:%s" $path (default .root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "ncclscope.scheme" -}}
{{- if and .Values.metrics.webConfig.secretName .Values.metrics.webConfig.tls -}}HTTPS{{- else -}}HTTP{{- end -}}
{{- end -}}

{{/* agent.toml. What the chart arranges itself cannot be set by `config`. */}}
{{- define "ncclscope.agentToml" -}}
{{- $mine := dict "socket" "paths.sockets" "api_socket" "the chart" "listen" "metrics.address and metrics.port"
  "web_config" "metrics.webConfig" "api_listen" "api.enabled, api.address and api.port" "api_cert_file" "api.secretName"
  "api_key_file" "api.secretName" "api_access_file" "api.secretName" "api_client_ca_file" "api.clientCertificates"
  "cluster" "cluster" "node" "the chart (the node's name)" "user" "identity.uid" "archive_directory" "archive.directory" "pods_log_root" "identity.podLogs" }}
{{- range $key, $value := .Values.config }}
{{- with get $mine $key }}
{{- fail (printf "config.%s is set by %s: leave it out of config" $key .) }}
{{- end }}
{{ $key }} = {{ if kindIs "string" $value }}{{ $value | toJson }}{{ else }}{{ int64 $value }}{{ end }}
{{- end }}
{{- with .Values.cluster }}
cluster = {{ toJson . }}
{{- end }}
socket = "/run/ncclscope/agent.sock"
api_socket = "/run/ncclscope-api/api.sock"
listen = "{{ .Values.metrics.address }}:{{ .Values.metrics.port }}"
{{- if .Values.archive.directory }}
archive_directory = "/var/lib/ncclscope/archive"
{{- end }}
{{- if .Values.metrics.webConfig.secretName }}
web_config = "/etc/ncclscope/web/{{ .Values.metrics.webConfig.key }}"
{{- end }}
{{- if .Values.api.enabled }}
api_listen = "{{ .Values.api.address }}:{{ .Values.api.port }}"
api_cert_file = "/etc/ncclscope/api/tls.crt"
api_key_file = "/etc/ncclscope/api/tls.key"
api_access_file = "/etc/ncclscope/api/access.toml"
{{- if .Values.api.clientCertificates }}
api_client_ca_file = "/etc/ncclscope/api/ca.crt"
{{- end }}
{{- end }}
{{- end -}}

{{/* Relabelling of targets: series are named by node, not by a pod that every upgrade replaces; and `namespace` and `pod`
of ncclscope_job_info are the job's. */}}
{{- define "ncclscope.relabelings" -}}
- action: replace
  sourceLabels: [__meta_kubernetes_pod_node_name]
  targetLabel: instance
- action: replace
  targetLabel: job
  replacement: ncclscope
- action: labeldrop
  regex: namespace|pod|container|service|endpoint
{{- end -}}

{{/* Arguments: root, monitor. */}}
{{- define "ncclscope.endpoint" -}}
port: metrics
path: /metrics
scheme: {{ include "ncclscope.scheme" .root | lower }}
interval: {{ .monitor.interval }}
scrapeTimeout: {{ .monitor.scrapeTimeout }}
relabelings:
  {{- include "ncclscope.relabelings" .root | nindent 2 }}
{{- with .monitor.endpoint }}
{{ toYaml . }}
{{- end }}
{{- end -}}
