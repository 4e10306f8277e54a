{{- /* A hash of the pods, to detect an upgrade that changes them. Comments in the templates don't change it. */}}
{{- define "torchtally.podsHash" -}}
{{- $pods := include "torchtally.pods" . | fromYaml }}
{{- /* The operator does add and remove the pods of an elastic job. */}}
{{- if .Values.elasticPolicy }}{{ $_ := unset (dig "pytorchReplicaSpecs" "Worker" dict $pods) "replicas" }}{{ end }}
{{- toYaml $pods | sha256sum }}
{{- end }}

{{- /* The error of an upgrade that would not reach the job, because no controller changes the pods of an existing job.
Empty if the upgrade would reach it, and without a cluster. */}}
{{- define "torchtally.upgradeError" -}}
{{- $api := include "torchtally.api" . | fromYaml }}
{{- $job := include "torchtally.job" . }}
{{- $existing := dict }}
{{- /* In Helm 4, looking up a kind that the cluster does not serve is an error. */}}
{{- if .Capabilities.APIVersions.Has (printf "%s/%s" $api.version $api.kind) }}
{{- $existing = lookup $api.version $api.kind .Release.Namespace $job }}
{{- end }}
{{- /* The ConfigMap comes before the annotation, which even a failed rollback changes. */}}
{{- $configMap := lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-pods" $job) }}
{{- $pods := and $existing (dig "data" "pods" (dig "metadata" "annotations" "torchtally/pods" "" $existing) $configMap) }}
{{- $suspended := dig "spec" "runPolicy" "suspend" false $existing }}
{{- $finished := false }}
{{- range dig "status" "conditions" list $existing }}
{{- if and (has .type (list "Succeeded" "Complete" "Failed")) (eq .status "True") }}{{ $finished = true }}{{ end }}
{{- end }}
{{- $ignored := "" }}
{{- if and $pods $finished }}{{ $ignored = include "torchtally.ignoredChanges" (list . $existing.spec) }}{{ end }}
{{- $podsDiffer := and $pods (ne $pods (include "torchtally.podsHash" .)) (or $finished (not $suspended)) }}
{{- if or $ignored $podsDiffer }}
{{- $reason := "exists, and the pods of a TrainJob cannot change" }}
{{- if $finished }}
{{- $reason = "has finished and cannot restart" }}
{{- else if eq $api.kind "PyTorchJob" }}
{{- $reason = "is running, and the pods of a running job cannot change" }}
{{- end }}
{{- with $ignored }}{{ $reason = printf "%s, and its controller ignores changes to %s" $reason . }}{{ end }}
{{- $suspend := ternary ", or suspend the job first (suspend=true) and then change it" "" (and (eq $api.kind "PyTorchJob") (not $finished)) }}
{{- printf "%s %s %s: uninstall and reinstall the release, or set jobNameRevision to true to replace the job with a new one%s" $api.kind $job $reason $suspend }}
{{- end }}
{{- end }}

{{- /* The changed values that the controller of a finished job ignores, from (list $ SPEC). */}}
{{- define "torchtally.ignoredChanges" -}}
{{- $root := index . 0 }}
{{- $spec := index . 1 }}
{{- $wanted := pick $root.Values "suspend" }}
{{- $existing := pick $spec "suspend" }}
{{- if eq $root.Values.api "pytorchjob" }}
{{- $wanted = omit (include "torchtally.runPolicy" $root | fromYaml) "cleanPodPolicy" "ttlSecondsAfterFinished" }}
{{- $existing = omit $spec.runPolicy "cleanPodPolicy" "ttlSecondsAfterFinished" }}
{{- end }}
{{- if $root.Values.elasticPolicy }}
{{- $_ := set $wanted "workers" $root.Values.workers }}
{{- $_ := set $existing "workers" (dig "pytorchReplicaSpecs" "Worker" "replicas" 1 $spec) }}
{{- end }}
{{- $names := list }}
{{- range $name := concat (keys $wanted) (keys $existing) | uniq | sortAlpha }}
{{- if ne (get $wanted $name | default "" | toJson) (get $existing $name | default "" | toJson) }}{{ $names = append $names $name }}{{ end }}
{{- end }}
{{- join ", " $names }}
{{- end }}
