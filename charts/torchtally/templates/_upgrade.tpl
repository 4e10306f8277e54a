{{- /* The pods, as far as an upgrade may not change them, as JSON. */}}
{{- define "torchtally.comparedPods" -}}
{{- $pods := include "torchtally.pods" . | fromYaml }}
{{- /* The operator does add and remove the pods of an elastic job. */}}
{{- if .Values.elasticPolicy }}{{ $_ := unset (dig "pytorchReplicaSpecs" "Worker" dict $pods) "replicas" }}{{ end }}
{{- toJson $pods }}
{{- end }}

{{- /* A hash of them, to detect an upgrade that changes them. Comments in the templates don't change it. */}}
{{- define "torchtally.podsHash" -}}
{{- include "torchtally.comparedPods" . | sha256sum }}
{{- end }}

{{- /* What differs between two parts of a specification, from (list PATH OLD NEW). Items of lists go by name. */}}
{{- define "torchtally.differences" -}}
{{- $path := index . 0 }}
{{- $old := index . 1 }}
{{- $new := index . 2 }}
{{- $found := list }}
{{- if and (kindIs "slice" $old) (kindIs "slice" $new) (concat $old $new | first | kindIs "map") }}
{{- $old = include "torchtally.byName" $old | fromJson }}
{{- $new = include "torchtally.byName" $new | fromJson }}
{{- end }}
{{- if and (kindIs "map" $old) (kindIs "map" $new) }}
{{- range $key := concat (keys $old) (keys $new) | uniq | sortAlpha }}
{{- $each := list (list $path $key | compact | join ".") (index $old $key) (index $new $key) }}
{{- $found = include "torchtally.differences" $each | fromYamlArray | concat $found }}
{{- end }}
{{- else if ne (toJson $old) (toJson $new) }}
{{- $where := regexReplaceAll "^pytorchReplicaSpecs\\.(Master|Worker)\\.|template\\.spec\\." $path "" }}
{{- $now := toRawJson $new | trunc 200 }}
{{- $found = append $found (printf "%s is %s and was %s" $where $now (toRawJson $old | trunc 200)) }}
{{- end }}
{{- toYaml $found }}
{{- end }}

{{- define "torchtally.byName" -}}
{{- $named := dict }}
{{- range $i, $item := . }}
{{- $_ := set $named (coalesce (get $item "name") (get $item "mountPath") (toString $i)) $item }}
{{- end }}
{{- toJson $named }}
{{- end }}

{{- /* The job in the cluster, as JSON. Empty if there is none, and without a cluster. */}}
{{- define "torchtally.existing" -}}
{{- $api := include "torchtally.api" . | fromYaml }}
{{- $existing := dict }}
{{- /* In Helm 4, looking up a kind that the cluster does not serve is an error. */}}
{{- if .Capabilities.APIVersions.Has (printf "%s/%s" $api.version $api.kind) }}
{{- $existing = lookup $api.version $api.kind .Release.Namespace (include "torchtally.job" .) }}
{{- end }}
{{- toJson $existing }}
{{- end }}

{{- /* The number of workers that `kubectl scale` or an autoscaler has set, from the existing job. The API server then
refuses another number from Helm 4, even if this one is that of the release. */}}
{{- define "torchtally.scaled" -}}
{{- $replicas := dig "spec" "pytorchReplicaSpecs" "Worker" "replicas" "" . | toString }}
{{- $scaled := ne $replicas (dig "metadata" "annotations" "torchtally/workers" $replicas .) }}
{{- range dig "metadata" "managedFields" list . }}
{{- if eq (default "" .subresource) "scale" }}{{ $scaled = true }}{{ end }}
{{- end }}
{{- if $scaled }}{{ $replicas }}{{ end }}
{{- end }}

{{- /* The number of workers to apply. An elastic job keeps the number it was scaled to, until the value changes. */}}
{{- define "torchtally.workers" -}}
{{- $workers := int .Values.workers | toString }}
{{- $scaled := "" }}
{{- if .Values.elasticPolicy }}
{{- $existing := include "torchtally.existing" . | fromJson }}
{{- if eq $workers (dig "metadata" "annotations" "torchtally/workers" "" $existing) }}
{{- $scaled = include "torchtally.scaled" $existing }}
{{- end }}
{{- end }}
{{- $scaled | default $workers }}
{{- end }}

{{- /* The error of an upgrade that would not reach the job, because no controller changes the pods of an existing job.
Empty if the upgrade would reach it, and without a cluster. */}}
{{- define "torchtally.upgradeError" -}}
{{- $api := include "torchtally.api" . | fromYaml }}
{{- $job := include "torchtally.job" . }}
{{- $existing := include "torchtally.existing" . | fromJson }}
{{- /* The ConfigMap comes before the annotation, which even a failed rollback changes. */}}
{{- $configMap := lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-pods" $job) }}
{{- $annotated := dig "metadata" "annotations" "torchtally/pods" "" $existing }}
{{- $pods := and $existing (dig "data" "pods" $annotated $configMap) }}
{{- $suspended := dig "spec" "runPolicy" "suspend" false $existing }}
{{- $finished := false }}
{{- /* The operator has started pods and not deleted them. In a manager cluster of MultiKueue, it makes none. */}}
{{- $hasPods := and (dig "status" "startTime" "" $existing) (not (hasPrefix "kueue.x-k8s.io/" .Values.managedBy)) }}
{{- range dig "status" "conditions" list $existing }}
{{- if and (eq .type "Suspended") (eq .status "True") }}{{ $hasPods = false }}{{ end }}
{{- if and (has .type (list "Succeeded" "Complete" "Failed")) (eq .status "True") }}{{ $finished = true }}{{ end }}
{{- end }}
{{- $ignored := list }}
{{- if and $pods (ne $pods (include "torchtally.podsHash" .)) (or $finished $hasPods (not $suspended)) }}
{{- $ignored = list "its pods" }}
{{- with dig "data" "spec" "" $configMap }}
{{- $compared := list "" (fromJson .) (include "torchtally.comparedPods" $ | fromJson) }}
{{- $changes := include "torchtally.differences" $compared | fromYamlArray | uniq }}
{{- $ignored = list (printf "its pods (%s)" (join ", " $changes)) }}
{{- end }}
{{- end }}
{{- if and $pods $finished }}
{{- $ignored = include "torchtally.ignoredChanges" (list . $existing.spec) | fromYamlArray | concat $ignored }}
{{- end }}
{{- $owner := dig "metadata" "annotations" "meta.helm.sh/release-name" .Release.Name $existing }}
{{- $scaled := include "torchtally.scaled" $existing }}
{{- $workers := int .Values.workers }}
{{- if ne $owner .Release.Name }}
{{- printf "%s %s belongs to the release %s: " $api.kind $job $owner -}}
set fullnameOverride to a name that no other release has
{{- else if $ignored }}
{{- printf "%s %s exists, and its controller ignores changes to %s: " $api.kind $job (join ", " $ignored) -}}
uninstall and reinstall the release, or set jobNameRevision to true to replace the job with a new one
{{- if and (eq $api.kind "PyTorchJob") (not $finished) -}}
, or suspend the job (suspend=true) and change it when its pods are deleted
{{- end }}
{{- else if and $scaled (not (has $scaled (list (toString .Values.workers) (include "torchtally.workers" .)))) }}
{{- printf "workers is %d, but PyTorchJob %s was scaled to %s workers: " $workers $job $scaled }}
{{- printf "run kubectl scale pytorchjob %s --replicas=%d first" $job $workers }}
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
{{- $_ := set $wanted "workers" (include "torchtally.workers" $root | int) }}
{{- $_ := set $existing "workers" (dig "pytorchReplicaSpecs" "Worker" "replicas" 1 $spec) }}
{{- end }}
{{- $names := list }}
{{- range $name := concat (keys $wanted) (keys $existing) | uniq | sortAlpha }}
{{- $now := index $wanted $name }}
{{- $was := index $existing $name }}
{{- if ne ($now | default "" | toJson) ($was | default "" | toJson) }}
{{- $names = append $names (printf "%s (which is %s and was %s)" $name (toRawJson $now) (toRawJson $was)) }}
{{- end }}
{{- end }}
{{- toYaml $names }}
{{- end }}
