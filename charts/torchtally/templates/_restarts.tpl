{{- /* "true" if torchtally, the entry point of all pods, counts restarts. It needs an output that outlives a pod. */}}
{{- define "torchtally.countsRestarts" -}}
{{- $counts := .Values.model.enabled }}
{{- range list .Values (.Values.master | default dict) (.Values.worker | default dict) }}
{{- $programs := list }}
{{- range .command }}{{ $programs = append $programs (toString . | base) }}{{ end }}
{{- if and $programs (not (has "torchtally" $programs)) }}{{ $counts = false }}{{ end }}
{{- end }}
{{- if $counts }}true{{ end }}
{{- end }}

{{- /* ExitCode replaces pods, which the operator does not count. */}}
{{- define "torchtally.restartPolicy" -}}
{{- $counts := eq "true" (include "torchtally.countsRestarts" .) }}
{{- .Values.restartPolicy | default (ternary "ExitCode" "OnFailure" $counts) }}
{{- end }}

{{- /* Restarts without progress, after which the entry point gives up. */}}
{{- define "torchtally.retries" -}}
{{- $given := .Values.backoffLimit }}
{{- if kindIs "invalid" $given }}6{{ else }}{{ $given | int64 }}{{ end }}
{{- end }}

{{- /* The controller counts the restarts of all pods, and a fault in one pod restarts every pod. */}}
{{- define "torchtally.backoffLimit" -}}
{{- $given := .Values.backoffLimit }}
{{- if kindIs "invalid" $given }}{{ mul 6 (include "torchtally.podCount" .) }}{{ else }}{{ $given | int64 }}{{ end }}
{{- end }}
