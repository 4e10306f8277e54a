{{- /* Completes .Values in place: what is left out by a null, Helm's way to do so, is empty. The schema requires what
cannot be empty. Each template begins with it. */}}
{{- define "torchtally.init" -}}
{{- include "torchtally.dropNulls" (list .Values (list "resources" "master" "worker")) }}
{{- include "torchtally.complete" .Values }}
{{- if .Values.openshift }}
{{- range $name, $default := dict "runAsUser" 1000 "runAsGroup" 0 "fsGroup" 1000 }}
{{- if eq (dig $name -1 $.Values.podSecurityContext | int) $default }}
{{- $_ := unset $.Values.podSecurityContext $name }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Makes lists, maps and strings that a map of values lacks empty ones. */}}
{{- define "torchtally.complete" -}}
{{- range list
  (list list "args" "command" "env" "initContainers" "ports" "sidecars")
  (list dict "commonLabels" "elasticPolicy" "labels" "podAnnotations" "podLabels" "podSecurityContext")
  (list "" "managedBy" "restartPolicy" "task")
}}
{{- $empty := first . }}
{{- range rest . }}{{ if not (hasKey $ .) }}{{ $_ := set $ . (deepCopy $empty) }}{{ end }}{{ end }}
{{- end }}
{{- end }}

{{- /* Removes each null in a map and in all that it contains, because an API server refuses a null in a custom
resource. From (list MAP KEYS): the values of these keys stay, because a null in them means something. */}}
{{- define "torchtally.dropNulls" -}}
{{- $map := index . 0 }}
{{- $left := index . 1 }}
{{- range $name, $value := $map }}
{{- if has $name $left }}{{ continue }}{{ end }}
{{- if kindIs "invalid" $value }}
{{- $_ := unset $map $name }}
{{- else if kindIs "map" $value }}
{{- include "torchtally.dropNulls" (list $value list) }}
{{- else if kindIs "slice" $value }}
{{- $kept := list }}
{{- range $value }}
{{- if not (kindIs "invalid" .) }}{{ $kept = append $kept . }}{{ end }}
{{- if kindIs "map" . }}{{ include "torchtally.dropNulls" (list . list) }}{{ end }}
{{- end }}
{{- $_ := set $map $name $kept }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The values for all pods merged with the overrides of one type, as JSON, from what a pod template is from. */}}
{{- define "torchtally.replicaValues" -}}
{{- $values := include "torchtally.merge" (list .root.Values (index .root.Values (lower .type))) | fromJson }}
{{- include "torchtally.dropNulls" (list $values (list "resources")) }}
{{- include "torchtally.complete" $values }}
{{- if not (hasKey $values "shmSize") }}{{ $_ := set $values "shmSize" .root.Values.shmSize }}{{ end }}
{{- toJson $values }}
{{- end }}

{{- /* Merges a map with overrides, from (list MAP OVERRIDES). Sprig's mergeOverwrite ignores overrides of 0, false, ""
and null. A null in place of a map changes nothing. The result is JSON: toYaml cuts a newline off its last string. */}}
{{- define "torchtally.merge" -}}
{{- $merged := deepCopy (index . 0) }}
{{- range $name, $own := index . 1 }}
{{- if kindIs "map" (index $merged $name) }}
{{- $_ := set $merged $name (include "torchtally.merge" (list (index $merged $name) $own) | fromJson) }}
{{- else }}
{{- $_ := set $merged $name $own }}
{{- end }}
{{- end }}
{{- toJson $merged }}
{{- end }}

{{- /* A value as a string. A number in a values file is a float, and Go prints the float 1000000 as 1e+06. */}}
{{- define "torchtally.string" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- define "torchtally.strings" -}}
{{- $strings := list }}
{{- range . }}{{ $strings = append $strings (include "torchtally.string" .) }}{{ end }}
{{- toYaml $strings }}
{{- end }}
