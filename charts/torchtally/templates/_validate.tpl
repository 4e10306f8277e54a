{{- /* Errors that the schema cannot express: contradicting values and limits of Kubernetes. Reports all of them at once. */}}
{{- define "torchtally.validate" -}}
{{- $errors := list }}
{{- $job := include "torchtally.job" . }}
{{- $gpus := int .Values.resources.gpu }}
{{- $workers := int .Values.workers }}

{{- /* Only a real API server lists kinds: offline, `helm template` lists group versions alone. */}}
{{- $online := .Capabilities.APIVersions.Has "v1/Pod" }}
{{- $api := include "torchtally.api" . | fromYaml }}
{{- if and $online (not (.Capabilities.APIVersions.Has (printf "%s/%s" $api.version $api.kind))) }}
{{- $errors = append $errors (printf "the cluster does not serve %s (%s): to install %s" $api.kind $api.version $api.install) }}
{{- end }}

{{- /* Each pod of a PyTorchJob has a Service of the same name, which is limited to 63 characters. */}}
{{- $longest := include "torchtally.podNames" . | fromYamlArray | last | default "-master-0" | trimPrefix $job }}
{{- if eq .Values.api "trainjob" }}{{ $longest = printf "%s-xxxxx" $longest }}{{ end }}
{{- $allowed := int (sub 63 (len $longest)) }}
{{- if gt (len $job) $allowed }}
{{- $errors = append $errors (printf "fullnameOverride (or the release name) %q has %d characters, but the maximum is %d: pod names append %s and are limited to 63" $job (len $job) $allowed $longest) }}
{{- end }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $job) }}
{{- $errors = append $errors (printf "fullnameOverride (or the release name) %q is not a valid Service name: it must start with a letter, end with a letter or digit, and contain only a-z, 0-9 and -" $job) }}
{{- end }}

{{- if .Values.verifier.job }}
{{- if not .Values.verifier.enabled }}
{{- $errors = append $errors "verifier.job is true but verifier.enabled is false: the Job needs the verifier's Role" }}
{{- end }}
{{- if eq .Values.cleanPodPolicy "All" }}
{{- $errors = append $errors "verifier.job is true but cleanPodPolicy is All, which deletes the logs before the Job can read them: set cleanPodPolicy to None or Running" }}
{{- end }}
{{- $suffix := "-verify-xxxxxxxx" }}
{{- $most := int (sub 63 (len $suffix)) }}
{{- if gt (len $job) $most }}
{{- $errors = append $errors (printf "fullnameOverride (or the release name) %q has %d characters, but with verifier.job the maximum is %d: the name of the Job appends %s and is limited to 63" $job (len $job) $most $suffix) }}
{{- end }}
{{- end }}

{{- $everyType := list }}
{{- range list "Master" "Worker" }}
{{- with index $.Values (lower .) }}{{ $everyType = append $everyType (or .command .args) }}{{ end }}
{{- end }}
{{- if not (or .Values.task .Values.command .Values.args (compact $everyType | len | eq 2)) }}
{{- $errors = append $errors "task, command and args are all empty: set task, or set command and args to define the workload" }}
{{- end }}

{{- $nproc := include "torchtally.nprocPerNode" . }}
{{- if and (eq $gpus 0) (eq $nproc "gpu") }}
{{- $errors = append $errors "nprocPerNode is gpu but resources.gpu is 0: request GPUs, or set nprocPerNode to a number" }}
{{- else if and (gt $gpus 0) (or (eq $nproc "cpu") (gt (int $nproc) $gpus)) }}
{{- $errors = append $errors (printf "nprocPerNode is %s but resources.gpu is %d: each process needs its own GPU" $nproc $gpus) }}
{{- end }}

{{- /* Errors of all pods are reported once. Errors of the overrides have the prefix `master.` or `worker.`. */}}
{{- $replicas := list (list "" .Values) }}
{{- range $type := list "Master" "Worker" }}
{{- if index $.Values (lower $type) }}{{ $replicas = append $replicas (list (printf "%s." (lower $type)) (include "torchtally.replicaValues" (dict "root" $ "type" $type) | fromYaml)) }}{{ end }}
{{- end }}
{{- range $replicas }}
{{- $prefix := index . 0 }}
{{- range include "torchtally.podErrors" (dict "root" $ "prefix" $prefix "values" (index . 1)) | fromYamlArray }}
{{- if not (has (trimPrefix $prefix .) $errors) }}{{ $errors = append $errors . }}{{ end }}
{{- end }}
{{- end }}

{{- $bytes := 0 }}
{{- range .Values.files }}{{ $bytes = add $bytes (len .) }}{{ end }}
{{- /* Base64 of random bytes is as long as text gets by compression. */}}
{{- if gt $bytes 409600 }}
{{- $errors = append $errors (printf "files have %d bytes in total, but the maximum is 409600, as Helm keeps them twice in a Secret of at most 1 MiB: put them into your own image or on the data volume" $bytes) }}
{{- end }}

{{- $name := .Values.resources.gpuResourceName }}
{{- if and $gpus (hasPrefix "amd.com/" $name) (not .Values.image.tag) (not .Values.image.digest) }}
{{- $errors = append $errors (printf "resources.gpuResourceName is %s, but torchtally has no image for AMD GPUs: set image.repository, and image.tag or image.digest, to an image with PyTorch for ROCm" $name) }}
{{- end }}
{{- range .Values.resourceClaims }}
{{- if ne (len (omit . "name")) 1 }}
{{- $errors = append $errors (printf "resourceClaims: the claim %s needs either resourceClaimName or resourceClaimTemplateName" .name) }}
{{- end }}
{{- end }}

{{- range $name := list "data" "cache" "podGroupPolicy" }}
{{- with include "torchtally.severalKeys" (index $.Values $name) }}{{ $errors = append $errors (printf "%s has %s: keep one of them" $name .) }}{{ end }}
{{- end }}

{{- $pods := include "torchtally.podNames" . | fromYamlArray | len }}
{{- if gt (dig "minAvailable" 0 (.Values.schedulingPolicy | default dict) | int) $pods }}
{{- $errors = append $errors (printf "schedulingPolicy.minAvailable is %d but the job has %d pods: it would never start" (int .Values.schedulingPolicy.minAvailable) $pods) }}
{{- end }}

{{- if and .Values.metrics.enabled (eq (int .Values.metrics.port) (int $api.port)) }}
{{- $errors = append $errors (printf "metrics.port is %d, which is the rendezvous port: choose another port" (int $api.port)) }}
{{- end }}

{{- with .Values.elasticPolicy }}
{{- $least := dig "minReplicas" $workers . | max 1 | int }}
{{- $most := dig "maxReplicas" $workers . | int }}
{{- if or (lt $workers $least) (gt $workers $most) }}
{{- $errors = append $errors (printf "workers is %d, but an elastic job starts with at least minReplicas (%d) and at most maxReplicas (%d) pods" $workers $least $most) }}
{{- end }}
{{- /* With a master, the operator miscounts the pods. */}}
{{- if $.Values.master }}
{{- $errors = append $errors "master is set, but an elastic job has no master: remove it, or remove elasticPolicy" }}
{{- end }}
{{- if and $.Values.model.enabled (not $.Values.model.existingClaim) (ne $.Values.model.accessMode "ReadWriteMany") }}
{{- $errors = append $errors (printf "model.accessMode is %s, but any pod of an elastic job can be rank 0, which writes the model: set it to ReadWriteMany, set model.existingClaim to a claim that all pods can mount, or set model.enabled to false" $.Values.model.accessMode) }}
{{- end }}
{{- end }}

{{- with .Values.model }}
{{- if and .existingClaim (not .enabled) }}
{{- $errors = append $errors (printf "model.existingClaim is %q but model.enabled is false: set model.enabled to true, or remove model.existingClaim" .existingClaim) }}
{{- end }}
{{- $subPath := tpl .subPath $ }}
{{- if or (hasPrefix "/" $subPath) (has ".." (splitList "/" $subPath)) }}
{{- $errors = append $errors (printf "model.subPath is %q, but it must be a path inside the PVC: leave out / at its beginning, and .." $subPath) }}
{{- end }}
{{- if and .existingClaim .storageClass }}
{{- $errors = append $errors (printf "model.storageClass is %q but model.existingClaim is %q, which already has a storage class: remove one of them" .storageClass .existingClaim) }}
{{- end }}
{{- end }}

{{- $errors = concat $errors (include (printf "torchtally.apiErrors.%s" .Values.api) . | fromYamlArray) }}

{{- with include "torchtally.upgradeError" . }}{{ $errors = append $errors . }}{{ end }}

{{- if $errors }}{{ fail (join "; " $errors) }}{{ end }}
{{- end }}

{{- /* Errors in the values of all pods, or of the master or the workers, from (dict "root" $ "prefix" "master." "values" …). */}}
{{- define "torchtally.podErrors" -}}
{{- $values := .values }}
{{- $prefix := .prefix }}
{{- $errors := list }}

{{- if $values.task }}
{{- if $values.command }}
{{- $errors = append $errors (printf "%scommand is set, but task is %q: to run your own command, set task to \"\"" $prefix $values.task) }}
{{- end }}
{{- with $values.args | first | default "-" | toString }}
{{- if not (hasPrefix "-" .) }}
{{- $errors = append $errors (printf "%sargs begin with %q, but task is %q, which takes options only: to run your own program, set task to \"\"" $prefix . $values.task) }}
{{- end }}
{{- end }}
{{- end }}

{{- $gpus := int $values.resources.gpu }}
{{- $nproc := include "torchtally.nprocPerNode" .root | int }}
{{- $most := int .root.Values.resources.gpu }}
{{- if gt $gpus $most }}
{{- $errors = append $errors (printf "%sresources.gpu is %d but resources.gpu is %d, which selects the image and must be the largest" $prefix $gpus $most) }}
{{- else if and (lt $gpus $most) (gt $gpus 0) (gt $nproc $gpus) }}
{{- $errors = append $errors (printf "nprocPerNode is %d but %sresources.gpu is %d: each process needs its own GPU" $nproc $prefix $gpus) }}
{{- end }}

{{- range $kind := list "requests" "limits" }}
{{- range $name, $_ := index $values.resources $kind }}
{{- if or (eq $name $values.resources.gpuResourceName) (regexMatch "/gpu$|^nvidia\\.com/mig-" $name) }}
{{- $errors = append $errors (printf "%sresources.%s contains %s: request GPUs with resources.gpu and resources.gpuResourceName" $prefix $kind $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- $resources := include "torchtally.resources" (dict "Values" $values) | fromYaml }}
{{- range $name, $request := $resources.requests }}
{{- $limit := dig "limits" $name "" $resources }}
{{- if and $limit (gt (include "torchtally.quantity" $request | float64) (include "torchtally.quantity" $limit | float64)) }}
{{- $errors = append $errors (printf "%sresources: the %s request %s exceeds the limit %s" $prefix $name $request $limit) }}
{{- end }}
{{- end }}

{{- range $values.env }}
{{- if has .name (list "MASTER_ADDR" "MASTER_PORT" "WORLD_SIZE" "RANK" "PET_MASTER_ADDR" "PET_MASTER_PORT" "PET_NNODES" "PET_NODE_RANK" "PET_NPROC_PER_NODE") }}
{{- $errors = append $errors (printf "%senv sets %s, which the operator sets: set workers and nprocPerNode instead" $prefix .name) }}
{{- end }}
{{- if and (eq .name "TORCHTALLY_METRICS_PORT") $values.metrics.enabled }}
{{- $errors = append $errors (printf "%senv sets TORCHTALLY_METRICS_PORT: set metrics.port instead" $prefix) }}
{{- end }}
{{- end }}

{{- $mounts := dict "shm" "/dev/shm" "tmp" "/tmp" "cache" "/cache" "output" "/output" "data" "/data" "files" "/files" }}
{{- $volumes := keys $mounts }}
{{- range $values.volumes }}
{{- $volumes = append $volumes .name }}
{{- $name := .name }}
{{- with include "torchtally.severalKeys" (omit . "name") }}{{ $errors = append $errors (printf "%svolumes: the volume %s has %s: keep one of them" $prefix $name .) }}{{ end }}
{{- if hasKey $mounts .name }}
{{- $errors = append $errors (printf "%svolumes contains %s, which is a volume of the chart: choose another name" $prefix .name) }}
{{- end }}
{{- end }}
{{- range $values.volumeMounts }}
{{- if has (trimSuffix "/" .mountPath) (values $mounts) }}
{{- $errors = append $errors (printf "%svolumeMounts contains %s, where the chart mounts a volume: choose another path" $prefix .mountPath) }}
{{- end }}
{{- if or (eq .mountPath "/") (and (not $values.command) (regexMatch "^/opt(/torchtally(/venv)?)?/?$" .mountPath)) }}
{{- $errors = append $errors (printf "%svolumeMounts contains %s, where the image has its program: choose another path" $prefix .mountPath) }}
{{- end }}
{{- if not (has .name $volumes) }}
{{- $errors = append $errors (printf "%svolumeMounts refers to %s, but volumes has no volume of that name" $prefix .name) }}
{{- end }}
{{- end }}

{{- $own := dict (include "torchtally.api" .root | fromYaml).container "the training container" }}
{{- if and (eq .root.Values.api "pytorchjob") (not .root.Values.elasticPolicy) }}{{ $_ := set $own "pull" "an init container of the chart" }}{{ end }}
{{- range concat $values.initContainers $values.sidecars }}
{{- if hasKey $own .name }}
{{- $errors = append $errors (printf "%sinitContainers or sidecars contains %s, which is %s: choose another name" $prefix .name (get $own .name)) }}
{{- end }}
{{- end }}
{{- range $values.sidecars }}
{{- if ne (.restartPolicy | default "Always") "Always" }}
{{- $errors = append $errors (printf "%ssidecars: %s has restartPolicy %s, but a sidecar always restarts: remove restartPolicy, or move the container to initContainers" $prefix .name .restartPolicy) }}
{{- end }}
{{- end }}
{{- range list
    (list "env" $values.env "name")
    (list "topologySpreadConstraints" $values.topologySpreadConstraints "topologyKey" "whenUnsatisfiable")
    (list "resourceClaims" $values.resourceClaims "name")
    (list "ports" (include "torchtally.ports" (dict "Values" $values) | fromYamlArray) "containerPort" "protocol")
    (list "ports" (include "torchtally.ports" (dict "Values" $values) | fromYamlArray) "name")
    (list "volumes" $values.volumes "name")
    (list "volumeMounts" $values.volumeMounts "mountPath")
    (list "initContainers and sidecars" (concat $values.initContainers $values.sidecars) "name")
}}
{{- range include "torchtally.duplicates" . | fromYamlArray }}{{ $errors = append $errors (print $prefix .) }}{{ end }}
{{- end }}
{{- range $list := list "initContainers" "sidecars" }}
{{- range $i, $container := index $values $list }}
{{- range list (list "env" "name") (list "ports" "containerPort" "protocol") (list "ports" "name") (list "volumeMounts" "mountPath") }}
{{- $of := concat (list (printf "%s%s[%d].%s" $prefix $list $i (first .)) (index $container (first .))) (rest .) }}
{{- range include "torchtally.duplicates" $of | fromYamlArray }}{{ $errors = append $errors . }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $errors }}
{{- end }}

{{- /* What the API server would say of items of a list that have the same keys, from (list PATH ITEMS KEY …). */}}
{{- define "torchtally.duplicates" -}}
{{- $call := . }}
{{- $known := list }}
{{- $errors := list }}
{{- range $i, $item := index . 1 | default list }}
{{- if not (hasKey $item (index $call 2)) }}{{ continue }}{{ end }}
{{- $named := dict }}
{{- range slice $call 2 }}{{ $_ := set $named . (get $item . | default (ternary "TCP" "" (eq . "protocol"))) }}{{ end }}
{{- if has $named $known }}{{ $errors = append $errors (printf "%s[%d]: Duplicate value: %s" (first $call) $i (toRawJson $named)) }}{{ end }}
{{- $known = append $known $named }}
{{- end }}
{{- toYaml $errors }}
{{- end }}

{{- /* Errors in values that a PyTorchJob does not support. */}}
{{- define "torchtally.apiErrors.pytorchjob" -}}
{{- $errors := list }}
{{- range $name := list "runtime" "podGroupPolicy" }}
{{- if index $.Values $name }}{{ $errors = append $errors (printf "%s is set, but only a TrainJob supports it: remove it, or set api to trainjob" $name) }}{{ end }}
{{- end }}
{{- if hasPrefix "trainer.kubeflow.org/" .Values.managedBy }}
{{- $errors = append $errors (printf "managedBy is %q, which does not control PyTorchJobs: leave it empty, or set api to trainjob" .Values.managedBy) }}
{{- end }}
{{- toYaml $errors }}
{{- end }}

{{- /* Errors in values that a TrainJob does not support. */}}
{{- define "torchtally.apiErrors.trainjob" -}}
{{- $errors := list }}
{{- range $name := list "elasticPolicy" "schedulingPolicy" "master" "worker" }}
{{- if index $.Values $name }}{{ $errors = append $errors (printf "%s is set, but a TrainJob does not support it: remove it, or set api to pytorchjob" $name) }}{{ end }}
{{- end }}
{{- if ne .Values.cleanPodPolicy "None" }}
{{- $errors = append $errors (printf "cleanPodPolicy is %s, but a TrainJob keeps its pods: set it to None, or set api to pytorchjob" .Values.cleanPodPolicy) }}
{{- end }}
{{- if not (kindIs "invalid" .Values.ttlSecondsAfterFinished) }}
{{- $errors = append $errors "ttlSecondsAfterFinished is set, but a finished TrainJob is never deleted automatically: set it to null, or set api to pytorchjob" }}
{{- end }}
{{- if hasPrefix "kubeflow.org/" .Values.managedBy }}
{{- $errors = append $errors (printf "managedBy is %q, which does not control TrainJobs: leave it empty, or set api to pytorchjob" .Values.managedBy) }}
{{- end }}
{{- if and .Values.podGroupPolicy (not .Values.schedulerName) }}
{{- $errors = append $errors "podGroupPolicy is set but schedulerName is empty: set schedulerName to a gang scheduler, such as volcano" }}
{{- end }}
{{- $nproc := include "torchtally.nprocPerNode" . }}
{{- if has $nproc (list "cpu" "gpu") }}
{{- $errors = append $errors (printf "nprocPerNode is %s, but a TrainJob allows only a number or auto" $nproc) }}
{{- end }}
{{- if and (gt (int .Values.workers) 0) .Values.model.enabled (not .Values.model.existingClaim) (ne .Values.model.accessMode "ReadWriteMany") }}
{{- $errors = append $errors (printf "model.accessMode is %s, but all pods of a TrainJob mount the PVC: set it to ReadWriteMany, set model.existingClaim to a claim that all pods can mount, or set model.enabled to false" .Values.model.accessMode) }}
{{- end }}
{{- with .Values.network }}{{ with .port }}
{{- $errors = append $errors (printf "network.port is %d, but the rendezvous port of a TrainJob is 29500: remove it, or set api to pytorchjob" (int .)) }}
{{- end }}{{ end }}
{{- with .Values.runtime }}
{{- range include "torchtally.unpatchableValues" $ | fromYamlArray }}
{{- $errors = append $errors (printf "%s is set, but a TrainJob cannot pass it to an existing runtime: remove it, or leave runtime empty" .) }}
{{- end }}
{{- end }}
{{- toYaml $errors }}
{{- end }}

{{- /* The keys of a map that may have only one, if it has several. */}}
{{- define "torchtally.severalKeys" -}}
{{- if gt (len (default dict .)) 1 }}{{ keys . | sortAlpha | join " and " }}{{ end }}
{{- end }}

{{- /* A Kubernetes quantity as a number. */}}
{{- define "torchtally.quantity" -}}
{{- $unit := regexFind "[A-Za-z]+$" . }}
{{- $factors := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 }}
{{- mulf (trimSuffix $unit . | float64) (index $factors $unit) }}
{{- end }}
