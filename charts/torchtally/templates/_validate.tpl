{{- /* What the schema cannot say: values that contradict each other, and Kubernetes' limits. All are told at once. */}}
{{- define "torchtally.validate" -}}
{{- $errors := list }}
{{- $job := include "torchtally.job" . }}
{{- $gpus := int .Values.resources.gpu }}
{{- $workers := int .Values.workers }}

{{- /* Only a real API server lists kinds: `helm template`, offline, knows group versions alone. */}}
{{- $online := .Capabilities.APIVersions.Has "v1/Pod" }}
{{- $api := include "torchtally.api" . | fromYaml }}
{{- if and $online (not (.Capabilities.APIVersions.Has (printf "%s/%s" $api.version $api.kind))) }}
{{- $errors = append $errors (printf "the cluster has no %s (%s): install %s" $api.kind $api.version $api.install) }}
{{- end }}

{{- /* Every pod of a PyTorchJob has a Service of its name, and a name may have 63 characters. */}}
{{- $longest := include "torchtally.podNames" . | fromYamlArray | last | default "-master-0" | trimPrefix $job }}
{{- if eq .Values.api "trainjob" }}{{ $longest = printf "%s-xxxxx" $longest }}{{ end }}
{{- $allowed := int (sub 63 (len $longest)) }}
{{- if gt (len $job) $allowed }}
{{- $errors = append $errors (printf "jobName (or the release's name) %q has %d characters, allowed are %d: %s is put behind it for the pods' names, and these may have 63" $job (len $job) $allowed $longest) }}
{{- end }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $job) }}
{{- $errors = append $errors (printf "jobName (or the release's name) %q is no name for a Service: it must start with a letter, end with a letter or digit, and hold only a-z, 0-9 and -" $job) }}
{{- end }}

{{- if and .Values.task .Values.command }}
{{- $errors = append $errors (printf "task is %q and command is set, too: with a command of your own, set task to \"\"" .Values.task) }}
{{- else if not (or .Values.task .Values.command .Values.args) }}
{{- $errors = append $errors "task, command and args are all empty: set task, or say with command and args what to run" }}
{{- end }}

{{- $nproc := include "torchtally.nprocPerNode" . }}
{{- if and (eq $gpus 0) (eq $nproc "gpu") }}
{{- $errors = append $errors "nprocPerNode is gpu and resources.gpu is 0: ask for GPUs, or give a number" }}
{{- else if and (gt $gpus 0) (or (eq $nproc "cpu") (gt (int $nproc) $gpus)) }}
{{- $errors = append $errors (printf "nprocPerNode is %s and resources.gpu is %d: a process needs a GPU of its own" $nproc $gpus) }}
{{- end }}

{{- /* What is wrong for all pods is said once, as of all; `master.` or `worker.` stands before what is theirs alone. */}}
{{- $replicas := list (list "" .Values) }}
{{- range $type := list "Master" "Worker" }}
{{- if index $.Values (lower $type) }}{{ $replicas = append $replicas (list (printf "%s." (lower $type)) (include "torchtally.valuesOf" (dict "root" $ "type" $type) | fromYaml)) }}{{ end }}
{{- end }}
{{- range $replicas }}
{{- $prefix := index . 0 }}
{{- range include "torchtally.wrongOfPods" (dict "root" $ "prefix" $prefix "values" (index . 1)) | fromYamlArray }}
{{- if not (has (trimPrefix $prefix .) $errors) }}{{ $errors = append $errors . }}{{ end }}
{{- end }}
{{- end }}

{{- $bytes := 0 }}
{{- range .Values.files }}{{ $bytes = add $bytes (len .) }}{{ end }}
{{- if gt $bytes 1048576 }}
{{- $errors = append $errors (printf "files are %d bytes together, and a ConfigMap holds 1048576: put them into an image of your own or on the data volume" $bytes) }}
{{- end }}

{{- if and (eq .Values.dnsPolicy "None") (not .Values.dnsConfig) }}
{{- $errors = append $errors "dnsPolicy is None and dnsConfig is empty: name servers there" }}
{{- end }}

{{- $pods := include "torchtally.podNames" . | fromYamlArray | len }}
{{- if gt (dig "minAvailable" 0 (.Values.schedulingPolicy | default dict) | int) $pods }}
{{- $errors = append $errors (printf "schedulingPolicy.minAvailable is %d, and the job has %d pods: it would wait for ever" (int .Values.schedulingPolicy.minAvailable) $pods) }}
{{- end }}

{{- if and .Values.metrics.enabled (eq (int .Values.metrics.port) (int $api.port)) }}
{{- $errors = append $errors (printf "metrics.port is %d, at which the pods meet: take another" (int $api.port)) }}
{{- end }}

{{- with .Values.elasticPolicy }}
{{- $least := dig "minReplicas" $workers . | int }}
{{- $most := dig "maxReplicas" $workers . | int }}
{{- if or (lt $workers (max 1 $least | int)) (gt $workers $most) }}
{{- $errors = append $errors (printf "workers is %d, and an elastic job begins with minReplicas (%d) to maxReplicas (%d) of them" $workers $least $most) }}
{{- end }}
{{- if $.Values.master }}
{{- $errors = append $errors "master is set, and a job with an elasticPolicy has no master: the operator would count its pods wrong" }}
{{- end }}
{{- if and $.Values.model.enabled (not $.Values.model.existingClaim) (ne $.Values.model.accessMode "ReadWriteMany") }}
{{- $errors = append $errors (printf "model.accessMode is %s, and in an elastic job any pod may be rank 0, which writes: set it to ReadWriteMany, give a model.existingClaim that all pods can mount, or set model.enabled to false" $.Values.model.accessMode) }}
{{- end }}
{{- end }}

{{- with .Values.model }}
{{- if and .existingClaim (not .enabled) }}
{{- $errors = append $errors (printf "model.existingClaim is %q and model.enabled is false: no claim is used then" .existingClaim) }}
{{- end }}
{{- if and .existingClaim .storageClass }}
{{- $errors = append $errors (printf "model.storageClass is %q, but model.existingClaim %q has a class already" .storageClass .existingClaim) }}
{{- end }}
{{- end }}

{{- $errors = concat $errors (include (printf "torchtally.wrongFor.%s" .Values.api) . | fromYamlArray) }}

{{- with include "torchtally.unchangeable" . }}{{ $errors = append $errors . }}{{ end }}

{{- if $errors }}{{ fail (join "; " $errors) }}{{ end }}
{{- end }}

{{- /* What is wrong with the values of some pods, as sentences, from (dict "root" $ "prefix" "master." "values" …). */}}
{{- define "torchtally.wrongOfPods" -}}
{{- $values := .values }}
{{- $prefix := .prefix }}
{{- $errors := list }}

{{- $gpus := int $values.resources.gpu }}
{{- $nproc := include "torchtally.nprocPerNode" .root | int }}
{{- $most := int .root.Values.resources.gpu }}
{{- if gt $gpus $most }}
{{- $errors = append $errors (printf "%sresources.gpu is %d and resources.gpu is %d, which has to be the largest, as it chooses the image" $prefix $gpus $most) }}
{{- else if and (lt $gpus $most) (gt $gpus 0) (gt $nproc $gpus) }}
{{- $errors = append $errors (printf "nprocPerNode is %d and %sresources.gpu is %d: a process needs a GPU of its own" $nproc $prefix $gpus) }}
{{- end }}

{{- range $kind := list "requests" "limits" }}
{{- range $name, $_ := index $values.resources $kind }}
{{- if or (eq $name $values.resources.gpuResourceName) (regexMatch "/gpu$|^nvidia\\.com/mig-" $name) }}
{{- $errors = append $errors (printf "%sresources.%s names %s: set resources.gpu (and resources.gpuResourceName) for GPUs" $prefix $kind $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- $resources := include "torchtally.resources" (dict "Values" $values) | fromYaml }}
{{- range $name, $request := $resources.requests }}
{{- $limit := dig "limits" $name "" $resources }}
{{- if and $limit (gt (include "torchtally.number" $request | float64) (include "torchtally.number" $limit | float64)) }}
{{- $errors = append $errors (printf "%sresources.requests: %s is %s, more than its limit %s" $prefix $name $request $limit) }}
{{- end }}
{{- end }}

{{- range $values.env }}
{{- if has .name (list "MASTER_ADDR" "MASTER_PORT" "WORLD_SIZE" "RANK" "PET_MASTER_ADDR" "PET_MASTER_PORT" "PET_NNODES" "PET_NODE_RANK" "PET_NPROC_PER_NODE") }}
{{- $errors = append $errors (printf "%senv sets %s, which is the operator's: set workers and nprocPerNode instead" $prefix .name) }}
{{- end }}
{{- if and (eq .name "TORCHTALLY_METRICS_PORT") $values.metrics.enabled }}
{{- $errors = append $errors (printf "%senv sets TORCHTALLY_METRICS_PORT: set metrics.port instead" $prefix) }}
{{- end }}
{{- end }}

{{- $mounts := dict "shm" "/dev/shm" "tmp" "/tmp" "cache" "/cache" "output" "/output" "data" "/data" "files" "/files" }}
{{- $volumes := keys $mounts }}
{{- range $values.volumes }}
{{- $volumes = append $volumes .name }}
{{- if hasKey $mounts .name }}
{{- $errors = append $errors (printf "%svolumes has %s, which is a volume of the chart's: take another name" $prefix .name) }}
{{- end }}
{{- end }}
{{- range $values.volumeMounts }}
{{- if has (trimSuffix "/" .mountPath) (values $mounts) }}
{{- $errors = append $errors (printf "%svolumeMounts has %s, where the chart mounts a volume: take another path" $prefix .mountPath) }}
{{- end }}
{{- if not (has .name $volumes) }}
{{- $errors = append $errors (printf "%svolumeMounts names %s, and volumes has none of that name" $prefix .name) }}
{{- end }}
{{- end }}

{{- $own := dict (include "torchtally.api" .root | fromYaml).container "the training's" }}
{{- if and (eq .root.Values.api "pytorchjob") (not .root.Values.elasticPolicy) }}{{ $_ := set $own "pull" "the chart's own" }}{{ end }}
{{- range concat $values.initContainers $values.sidecars }}
{{- if hasKey $own .name }}
{{- $errors = append $errors (printf "%sinitContainers or sidecars has %s, which is %s container: take another name" $prefix .name (get $own .name)) }}
{{- end }}
{{- end }}
{{- toYaml $errors }}
{{- end }}

{{- /* What the one API cannot say, as sentences. */}}
{{- define "torchtally.wrongFor.pytorchjob" -}}
{{- $errors := list }}
{{- range $name := list "runtime" "podGroupPolicy" }}
{{- if index $.Values $name }}{{ $errors = append $errors (printf "%s is set, which only a TrainJob has: leave it out, or set api to trainjob" $name) }}{{ end }}
{{- end }}
{{- if hasPrefix "trainer.kubeflow.org/" .Values.managedBy }}
{{- $errors = append $errors (printf "managedBy is %q, which does not run PyTorchJobs: leave it empty, or set api to trainjob" .Values.managedBy) }}
{{- end }}
{{- toYaml $errors }}
{{- end }}

{{- /* And what the other cannot. */}}
{{- define "torchtally.wrongFor.trainjob" -}}
{{- $errors := list }}
{{- range $name := list "elasticPolicy" "schedulingPolicy" "master" "worker" }}
{{- if index $.Values $name }}{{ $errors = append $errors (printf "%s is set, which a TrainJob does not have: leave it out, or set api to pytorchjob" $name) }}{{ end }}
{{- end }}
{{- if ne .Values.cleanPodPolicy "None" }}
{{- $errors = append $errors (printf "cleanPodPolicy is %s, and a TrainJob keeps its pods: set it to None, or api to pytorchjob" .Values.cleanPodPolicy) }}
{{- end }}
{{- if not (kindIs "invalid" .Values.ttlSecondsAfterFinished) }}
{{- $errors = append $errors "ttlSecondsAfterFinished is set, and a TrainJob is never deleted by itself: set it to null, or api to pytorchjob" }}
{{- end }}
{{- if hasPrefix "kubeflow.org/" .Values.managedBy }}
{{- $errors = append $errors (printf "managedBy is %q, which does not run TrainJobs: leave it empty, or set api to pytorchjob" .Values.managedBy) }}
{{- end }}
{{- if and .Values.podGroupPolicy (not .Values.schedulerName) }}
{{- $errors = append $errors "podGroupPolicy is set and schedulerName is empty: name the scheduler that starts pods together, such as volcano" }}
{{- end }}
{{- $nproc := include "torchtally.nprocPerNode" . }}
{{- if has $nproc (list "cpu" "gpu") }}
{{- $errors = append $errors (printf "nprocPerNode is %s, and a TrainJob takes a number or auto" $nproc) }}
{{- end }}
{{- if and (gt (int .Values.workers) 0) .Values.model.enabled (not .Values.model.existingClaim) (ne .Values.model.accessMode "ReadWriteMany") }}
{{- $errors = append $errors (printf "model.accessMode is %s, and all pods of a TrainJob mount the claim, for they are made from one template: set it to ReadWriteMany, give a model.existingClaim that all pods can mount, or set model.enabled to false" .Values.model.accessMode) }}
{{- end }}
{{- with .Values.runtime }}
{{- range include "torchtally.unpatchable" $ | fromYamlArray }}
{{- $errors = append $errors (printf "%s is set, which a TrainJob cannot say to a runtime of the cluster: leave it out, or leave runtime empty" .) }}
{{- end }}
{{- end }}
{{- toYaml $errors }}
{{- end }}

{{- /* Why an upgrade would not reach the pods, which the operator never changes; empty where it would, or offline. */}}
{{- define "torchtally.unchangeable" -}}
{{- $api := include "torchtally.api" . | fromYaml }}
{{- $job := include "torchtally.job" . }}
{{- $there := dict }}
{{- /* A lookup of a kind that the cluster does not have is an error of Helm 4's own. */}}
{{- if .Capabilities.APIVersions.Has (printf "%s/%s" $api.version $api.kind) }}
{{- $there = lookup $api.version $api.kind .Release.Namespace $job }}
{{- end }}
{{- /* A rollback that was refused has changed the annotation all the same. */}}
{{- $kept := lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-pods" $job) }}
{{- $pods := and $there (dig "data" "pods" (dig "metadata" "annotations" "torchtally/pods" "" $there) $kept) }}
{{- $mayChange := dig "spec" "runPolicy" "suspend" false $there }}
{{- $ended := false }}
{{- range dig "status" "conditions" list $there }}
{{- if and (has .type (list "Succeeded" "Complete" "Failed")) (eq .status "True") }}{{ $ended = true }}{{ end }}
{{- end }}
{{- $inVain := "" }}
{{- if and $pods $ended }}{{ $inVain = include "torchtally.inVain" (list . $there.spec) }}{{ end }}
{{- $othersInVain := and $pods (ne $pods (include "torchtally.podsHash" .)) (or $ended (not $mayChange)) }}
{{- if or $inVain $othersInVain }}
{{- $why := ternary "has ended, and is not started again" "runs, and its controller gives the pods of a running job no new values" $ended }}
{{- with $inVain }}{{ $why = printf "%s, and heeds no other %s" $why . }}{{ end }}
{{- $suspend := ternary "; or suspend it by suspend=true first, and change it then" "" (and (eq $api.kind "PyTorchJob") (not $ended)) }}
{{- printf "%s %s %s: uninstall and install, or set jobNameRevision to true for a new job in its place%s" $api.kind $job $why $suspend }}
{{- end }}
{{- end }}

{{- /* The values that differ from an ended job's and that its controller no longer looks at, from (list $ SPECIFICATION). */}}
{{- define "torchtally.inVain" -}}
{{- $root := index . 0 }}
{{- $spec := index . 1 }}
{{- $wanted := pick $root.Values "suspend" }}
{{- $there := pick $spec "suspend" }}
{{- if eq $root.Values.api "pytorchjob" }}
{{- $wanted = omit (include "torchtally.runPolicy" $root | fromYaml) "cleanPodPolicy" "ttlSecondsAfterFinished" }}
{{- $there = omit $spec.runPolicy "cleanPodPolicy" "ttlSecondsAfterFinished" }}
{{- end }}
{{- if $root.Values.elasticPolicy }}
{{- $_ := set $wanted "workers" $root.Values.workers }}
{{- $_ := set $there "workers" (dig "pytorchReplicaSpecs" "Worker" "replicas" 1 $spec) }}
{{- end }}
{{- $names := list }}
{{- range $name := concat (keys $wanted) (keys $there) | uniq | sortAlpha }}
{{- if ne (get $wanted $name | default "" | toJson) (get $there $name | default "" | toJson) }}{{ $names = append $names $name }}{{ end }}
{{- end }}
{{- join ", " $names }}
{{- end }}

{{- /* A Kubernetes quantity as a number that can be compared. */}}
{{- define "torchtally.number" -}}
{{- $unit := regexFind "[A-Za-z]+$" . }}
{{- $factors := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 }}
{{- mulf (trimSuffix $unit . | float64) (index $factors $unit) }}
{{- end }}
