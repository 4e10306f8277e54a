{{- /* All errors that the schema cannot express: contradicting values and limits of Kubernetes. */}}
{{- define "torchtally.validate" -}}
{{- $job := include "torchtally.job" . }}
{{- $gpus := int .Values.resources.gpu }}
{{- $gpuName := .Values.resources.gpuResourceName }}
{{- $nproc := include "torchtally.nprocPerNode" . }}
{{- $workers := int .Values.workers }}
{{- $model := .Values.model }}
{{- $minAvailable := dig "minAvailable" 0 (.Values.schedulingPolicy | default dict) | int }}

{{- /* Only a real API server lists kinds: offline, `helm template` lists group versions alone. */}}
{{- $online := .Capabilities.APIVersions.Has "v1/Pod" }}
{{- $api := include "torchtally.api" . | fromYaml }}
{{- $served := .Capabilities.APIVersions.Has (printf "%s/%s" $api.version $api.kind) }}

{{- /* Each pod of a PyTorchJob has a Service of the same name, which is limited to 63 characters. */}}
{{- $podNames := include "torchtally.podNames" . | fromYamlArray }}
{{- $longest := last $podNames | default "-master-0" | trimPrefix $job }}
{{- if eq .Values.api "trainjob" }}{{ $longest = printf "%s-xxxxx" $longest }}{{ end }}
{{- $longestJob := sub 63 (len $longest) | int }}
{{- $verifierSuffix := "-verify-xxxxxxxx" }}
{{- $longestVerified := sub 63 (len $verifierSuffix) | int }}
{{- $named := printf "fullnameOverride (or the release name) %q" $job }}

{{- $everyType := list }}
{{- range list "Master" "Worker" }}
{{- with index $.Values (lower .) }}{{ $everyType = append $everyType (or .command .args) }}{{ end }}
{{- end }}
{{- $hasProgram := or .Values.task .Values.command .Values.args (compact $everyType | len | eq 2) }}

{{- $errors := include "torchtally.refused" (list
  (list (and $online (not $served))
    (printf "the cluster does not serve %s (%s): to install %s" $api.kind $api.version $api.install))
  (list (gt (len $job) $longestJob)
    (printf "%s has %d characters, but the maximum is %d: " $named (len $job) $longestJob)
    (printf "pod names append %s and are limited to 63" $longest))
  (list (not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $job))
    $named " is not a valid Service name: "
    "it must start with a letter, end with a letter or digit, and contain only a-z, 0-9 and -")
  (list (and .Values.verifier.job (not .Values.verifier.enabled))
    "verifier.job is true but verifier.enabled is false: the Job needs the verifier's Role")
  (list (and .Values.verifier.job (eq .Values.cleanPodPolicy "All"))
    "verifier.job is true but cleanPodPolicy is All, which deletes the logs before the Job can read them: "
    "set cleanPodPolicy to None or Running")
  (list (and .Values.verifier.job (gt (len $job) $longestVerified))
    (printf "%s has %d characters, but with verifier.job the maximum is %d: " $named (len $job) $longestVerified)
    (printf "the name of the Job appends %s and is limited to 63" $verifierSuffix))
  (list (not $hasProgram)
    "task, command and args are all empty: set task, or set command and args to define the workload")
  (list (and (eq $gpus 0) (eq $nproc "gpu"))
    "nprocPerNode is gpu but resources.gpu is 0: request GPUs, or set nprocPerNode to a number")
  (list (and (gt $gpus 0) (or (eq $nproc "cpu") (gt (int $nproc) $gpus)))
    (printf "nprocPerNode is %s but resources.gpu is %d: each process needs its own GPU" $nproc $gpus))
) | fromYamlArray }}

{{- /* Errors of all pods are reported once. Errors of the overrides have the prefix `master.` or `worker.`. */}}
{{- $replicas := list (list "" .Values) }}
{{- range $type := list "Master" "Worker" }}
{{- if index $.Values (lower $type) }}
{{- $own := include "torchtally.replicaValues" (dict "root" $ "type" $type) | fromJson }}
{{- $replicas = append $replicas (list (printf "%s." (lower $type)) $own) }}
{{- end }}
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
{{- $rules := list
  (list (gt $bytes 409600)
    (printf "files have %d bytes in total, but the maximum is 409600, as Helm keeps them twice in a Secret " $bytes)
    "of at most 1 MiB: put them into your own image or on the data volume")
  (list (and $gpus (hasPrefix "amd.com/" $gpuName) (not .Values.image.tag) (not .Values.image.digest))
    (printf "resources.gpuResourceName is %s, but torchtally has no image for AMD GPUs: " $gpuName)
    "set image.repository, and image.tag or image.digest, to an image with PyTorch for ROCm")
}}
{{- range .Values.resourceClaims }}
{{- $rules = append $rules (list (ne (len (omit . "name")) 1)
  (printf "resourceClaims: the claim %s needs either resourceClaimName or resourceClaimTemplateName" .name)) }}
{{- end }}
{{- range $name := list "data" "cache" "podGroupPolicy" }}
{{- with include "torchtally.severalKeys" (index $.Values $name) }}
{{- $rules = append $rules (list true (printf "%s has %s: keep one of them" $name .)) }}
{{- end }}
{{- end }}
{{- $rules = concat $rules (list
  (list (gt $minAvailable (len $podNames))
    (printf "schedulingPolicy.minAvailable is %d but the job has %d pods: " $minAvailable (len $podNames))
    "it would never start")
  (list (and .Values.metrics.enabled (eq (int .Values.metrics.port) (int $api.port)))
    (printf "metrics.port is %d, which is the rendezvous port: choose another port" (int $api.port)))
) }}
{{- with .Values.elasticPolicy }}
{{- $least := dig "minReplicas" $workers . | max 1 | int }}
{{- $most := dig "maxReplicas" $workers . | int }}
{{- /* With a master, the operator miscounts the pods. */}}
{{- $rules = concat $rules (list
  (list (or (lt $workers $least) (gt $workers $most))
    (printf "workers is %d, but an elastic job starts with at least minReplicas (%d) " $workers $least)
    (printf "and at most maxReplicas (%d) pods" $most))
  (list $.Values.master "master is set, but an elastic job has no master: remove it, or remove elasticPolicy")
) }}
{{- with include "torchtally.claimError" (list $ "any pod of an elastic job can be rank 0, which writes the model") }}
{{- $rules = append $rules (list true .) }}
{{- end }}
{{- end }}
{{- $subPath := tpl $model.subPath . }}
{{- $rules = concat $rules (list
  (list (and $model.existingClaim (not $model.enabled))
    (printf "model.existingClaim is %q but model.enabled is false: " $model.existingClaim)
    "set model.enabled to true, or remove model.existingClaim")
  (list (or (hasPrefix "/" $subPath) (has ".." (splitList "/" $subPath)))
    (printf "model.subPath is %q, but it must be a path inside the PVC: " $subPath)
    "leave out / at its beginning, and ..")
  (list (and $model.existingClaim $model.storageClass)
    (printf "model.storageClass is %q but model.existingClaim is %q, " $model.storageClass $model.existingClaim)
    "which already has a storage class: remove one of them")
) }}

{{- $errors = include "torchtally.refused" $rules | fromYamlArray | concat $errors }}
{{- $errors = include (printf "torchtally.apiErrors.%s" .Values.api) . | fromYamlArray | concat $errors }}
{{- with include "torchtally.upgradeError" . }}{{ $errors = append $errors . }}{{ end }}
{{- if $errors }}{{ fail (join "; " $errors) }}{{ end }}
{{- end }}

{{- /* The errors that apply, from a list of (list CONDITION PART …): the parts of a message, in as many lines. */}}
{{- define "torchtally.refused" -}}
{{- $errors := list }}
{{- range . }}{{ if first . }}{{ $errors = append $errors (rest . | join "") }}{{ end }}{{ end }}
{{- toYaml $errors }}
{{- end }}

{{- /* The error of a claim that is not for all pods, from (list $ WHY). */}}
{{- define "torchtally.claimError" -}}
{{- $why := index . 1 }}
{{- with (index . 0).Values.model }}
{{- if and .enabled (not .existingClaim) (ne .accessMode "ReadWriteMany") }}
{{- printf "model.accessMode is %s, but %s: set it to ReadWriteMany, " .accessMode $why -}}
set model.existingClaim to a claim that all pods can mount, or set model.enabled to false
{{- end }}
{{- end }}
{{- end }}

{{- /* Errors in values that a PyTorchJob does not support. */}}
{{- define "torchtally.apiErrors.pytorchjob" -}}
{{- $rules := list }}
{{- range $name := list "runtime" "podGroupPolicy" }}
{{- $rules = append $rules (list (index $.Values $name)
  (printf "%s is set, but only a TrainJob supports it: remove it, or set api to trainjob" $name)) }}
{{- end }}
{{- $rules = append $rules (list (hasPrefix "trainer.kubeflow.org/" .Values.managedBy)
  (printf "managedBy is %q, which does not control PyTorchJobs: " .Values.managedBy)
  "leave it empty, or set api to trainjob") }}
{{- include "torchtally.refused" $rules }}
{{- end }}

{{- /* Errors in values that a TrainJob does not support. */}}
{{- define "torchtally.apiErrors.trainjob" -}}
{{- $rules := list }}
{{- range $name := list "elasticPolicy" "schedulingPolicy" "master" "worker" }}
{{- $rules = append $rules (list (index $.Values $name)
  (printf "%s is set, but a TrainJob does not support it: remove it, or set api to pytorchjob" $name)) }}
{{- end }}
{{- $nproc := include "torchtally.nprocPerNode" . }}
{{- $port := dig "port" 0 (.Values.network | default dict) | int }}
{{- $claim := include "torchtally.claimError" (list . "all pods of a TrainJob mount the PVC") }}
{{- $rules = concat $rules (list
  (list (ne .Values.cleanPodPolicy "None")
    (printf "cleanPodPolicy is %s, but a TrainJob keeps its pods: " .Values.cleanPodPolicy)
    "set it to None, or set api to pytorchjob")
  (list (not (kindIs "invalid" .Values.ttlSecondsAfterFinished))
    "ttlSecondsAfterFinished is set, but a finished TrainJob is never deleted automatically: "
    "set it to null, or set api to pytorchjob")
  (list (hasPrefix "kubeflow.org/" .Values.managedBy)
    (printf "managedBy is %q, which does not control TrainJobs: " .Values.managedBy)
    "leave it empty, or set api to pytorchjob")
  (list (and .Values.podGroupPolicy (not .Values.schedulerName))
    "podGroupPolicy is set but schedulerName is empty: set schedulerName to a gang scheduler, such as volcano")
  (list (has $nproc (list "cpu" "gpu"))
    (printf "nprocPerNode is %s, but a TrainJob allows only a number or auto" $nproc))
  (list (and (gt (int .Values.workers) 0) $claim) $claim)
  (list $port
    (printf "network.port is %d, but the rendezvous port of a TrainJob is 29500: " $port)
    "remove it, or set api to pytorchjob")
) }}
{{- if .Values.runtime }}
{{- range include "torchtally.unpatchableValues" $ | fromYamlArray }}
{{- $rules = append $rules (list true
  (printf "%s is set, but a TrainJob cannot pass it to an existing runtime: remove it, or leave runtime empty" .)) }}
{{- end }}
{{- end }}
{{- include "torchtally.refused" $rules }}
{{- end }}

{{- /* The keys of a map that may have only one, if it has several. */}}
{{- define "torchtally.severalKeys" -}}
{{- if gt (len (default dict .)) 1 }}{{ keys . | sortAlpha | join " and " }}{{ end }}
{{- end }}
