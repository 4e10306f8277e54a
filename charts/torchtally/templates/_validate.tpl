{{- /* What the schema cannot say: values that contradict each other, and Kubernetes' limits. All are told at once. */}}
{{- define "torchtally.validate" -}}
{{- $errors := list }}
{{- $job := include "torchtally.job" . }}
{{- $gpus := int .Values.resources.gpu }}
{{- $workers := int .Values.workers }}

{{- /* Only a real API server lists kinds: `helm template`, offline, knows group versions alone. */}}
{{- $online := .Capabilities.APIVersions.Has "v1/Pod" }}
{{- if and $online (not (.Capabilities.APIVersions.Has "kubeflow.org/v1/PyTorchJob")) }}
{{- $errors = append $errors "the cluster has no PyTorchJob (kubeflow.org/v1): install the Kubeflow training operator first, kubectl apply --server-side -k \"github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.4\"" }}
{{- end }}

{{- /* Every pod has a Service of its name, and a Service's name may have 63 characters. */}}
{{- $longest := ternary (printf "-worker-%d" (sub $workers 1)) "-master-0" (gt $workers 0) }}
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

{{- $resources := include "torchtally.resources" . | fromYaml }}
{{- range $kind := list "requests" "limits" }}
{{- range $name, $_ := index $.Values.resources $kind }}
{{- if or (eq $name $.Values.resources.gpuResourceName) (regexMatch "/gpu$|^nvidia\\.com/mig-" $name) }}
{{- $errors = append $errors (printf "resources.%s names %s: set resources.gpu (and resources.gpuResourceName) for GPUs" $kind $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name, $request := $resources.requests }}
{{- $limit := dig "limits" $name "" $resources }}
{{- if and $limit (gt (include "torchtally.number" $request | float64) (include "torchtally.number" $limit | float64)) }}
{{- $errors = append $errors (printf "resources.requests: %s is %s, more than its limit %s" $name $request $limit) }}
{{- end }}
{{- end }}

{{- range .Values.env }}
{{- if has .name (list "MASTER_ADDR" "MASTER_PORT" "WORLD_SIZE" "RANK" "PET_MASTER_ADDR" "PET_MASTER_PORT" "PET_NNODES" "PET_NODE_RANK" "PET_NPROC_PER_NODE") }}
{{- $errors = append $errors (printf "env sets %s, which is the operator's: set workers and nprocPerNode instead" .name) }}
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

{{- if $errors }}{{ fail (join "; " $errors) }}{{ end }}
{{- end }}

{{- /* A Kubernetes quantity as a number that can be compared. */}}
{{- define "torchtally.number" -}}
{{- $unit := regexFind "[A-Za-z]+$" . }}
{{- $factors := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 }}
{{- mulf (trimSuffix $unit . | float64) (index $factors $unit) }}
{{- end }}
