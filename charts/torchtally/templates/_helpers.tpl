{{- /* The name that all revisions share. If a parent chart has this chart twice, one of them has an alias, which is its
.Chart.Name. */}}
{{- define "torchtally.name" -}}
{{- $aliased := printf "%s-%s" .Release.Name .Chart.Name }}
{{- .Values.fullnameOverride | default (ternary .Release.Name $aliased (eq .Chart.Name "torchtally")) }}
{{- end }}

{{- define "torchtally.job" -}}
{{ include "torchtally.name" . }}{{ if .Values.jobNameRevision }}-{{ .Release.Revision }}{{ end }}
{{- end }}

{{- /* Properties of the job's kind that other objects refer to. */}}
{{- define "torchtally.api" -}}
{{- if eq .Values.api "trainjob" }}
kind: TrainJob
version: trainer.kubeflow.org/v1alpha1
resource: trainjobs
labels:
  jobset.sigs.k8s.io/jobset-name: {{ include "torchtally.job" . | quote }}
  jobset.sigs.k8s.io/replicatedjob-name: node
container: node
port: 29500
install: Kubeflow Trainer, run kubectl apply --server-side -k
  "https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0"
{{- else }}
kind: PyTorchJob
version: kubeflow.org/v1
resource: pytorchjobs
labels:
  training.kubeflow.org/job-name: {{ include "torchtally.job" . | quote }}
container: pytorch
port: {{ dig "port" 23456 (.Values.network | default dict) }}
install: the Kubeflow training operator, run kubectl apply --server-side -k
  "github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.4"
{{- end }}
{{- end }}

{{- /* The hostnames of all pods, for an elastic job of the maximum number. They are also the names of a PyTorchJob's
pods; the names of a TrainJob's pods end in a random suffix. */}}
{{- define "torchtally.podNames" -}}
{{- $job := include "torchtally.job" . }}
{{- $workers := int .Values.workers }}
{{- $names := list }}
{{- if eq .Values.api "trainjob" }}
{{- range until (int (add1 $workers)) }}{{ $names = append $names (printf "%s-node-0-%d" $job .) }}{{ end }}
{{- else }}
{{- if .Values.elasticPolicy }}
{{- $workers = max $workers (dig "maxReplicas" 0 .Values.elasticPolicy | int) | int }}
{{- else }}
{{- $names = append $names (printf "%s-master-0" $job) }}
{{- end }}
{{- range until $workers }}{{ $names = append $names (printf "%s-worker-%d" $job .) }}{{ end }}
{{- end }}
{{- toYaml $names }}
{{- end }}

{{- /* The initial number of pods. */}}
{{- define "torchtally.podCount" -}}
{{ ternary (int .Values.workers) (add1 .Values.workers | int) (gt (len .Values.elasticPolicy) 0) }}
{{- end }}

{{- define "torchtally.claim" -}}
{{ .Values.model.existingClaim | default (printf "%s-model" (include "torchtally.name" .)) }}
{{- end }}

{{- /* The ConfigMap's name contains a hash of the files, because the ConfigMap is immutable. */}}
{{- define "torchtally.files" -}}
{{ include "torchtally.job" . }}-files-{{ .Values.files | toJson | sha256sum | trunc 8 }}
{{- end }}

{{- define "torchtally.serviceAccount" -}}
{{- with .Values.serviceAccount }}
{{- .name | default (ternary (include "torchtally.job" $) "default" .create) }}
{{- end }}
{{- end }}

{{- /* The name of the verifier's service account, Role and RoleBinding. Because no job's name can have a dot, it is
never that of the service account of another job. */}}
{{- define "torchtally.verifier" -}}
{{ include "torchtally.job" . }}.verify
{{- end }}

{{- define "torchtally.podLabels" -}}
{{- toYaml (mergeOverwrite (dict
    "app.kubernetes.io/name" .Chart.Name
    "app.kubernetes.io/instance" .Release.Name
  ) .Values.commonLabels .Values.podLabels) }}
{{- end }}

{{- /* Selects the job's pods by the labels that its controller sets. */}}
{{- define "torchtally.selector" -}}
matchLabels:
  {{- (include "torchtally.api" . | fromYaml).labels | toYaml | nindent 2 }}
{{- end }}

{{- /* The same selector in kubectl's syntax. */}}
{{- define "torchtally.labelSelector" -}}
{{- $pairs := list }}
{{- range $name, $value := (include "torchtally.api" . | fromYaml).labels }}
{{- $pairs = append $pairs (printf "%s=%s" $name $value) }}
{{- end }}
{{- join "," $pairs }}
{{- end }}

{{- define "torchtally.labels" -}}
{{- toYaml (mergeOverwrite (dict
    "app.kubernetes.io/name" .Chart.Name
    "app.kubernetes.io/instance" .Release.Name
    "app.kubernetes.io/version" .Chart.AppVersion
    "app.kubernetes.io/managed-by" .Release.Service
    "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")
  ) .Values.commonLabels) }}
{{- end }}

{{- define "torchtally.monitorLabels" -}}
{{- mergeOverwrite (include "torchtally.labels" . | fromYaml) .Values.metrics.podMonitorLabels | toYaml }}
{{- end }}

{{- define "torchtally.device" -}}
{{ ternary "cuda" "cpu" (gt (int .Values.resources.gpu) 0) }}
{{- end }}

{{- /* A reference to an image, from (list $ IMAGE). The device is the job's, also where a type of pod has no GPU. */}}
{{- define "torchtally.image" -}}
{{- $root := index . 0 }}
{{- with index . 1 }}
{{- $default := printf "%s-%s" $root.Chart.AppVersion (include "torchtally.device" $root) }}
{{- $tag := .tag | default (ternary $default "" (empty .digest)) }}
{{- $image := print .repository (ternary ":" "" (ne $tag "")) $tag (ternary "" "@" (empty .digest)) .digest }}
{{- include "torchtally.mirrored" (list $root $image) }}
{{- end }}
{{- end }}

{{- /* An image of global.imageRegistry in place of its own registry, from (list $ IMAGE). */}}
{{- define "torchtally.mirrored" -}}
{{- $image := index . 1 }}
{{- with dig "imageRegistry" "" ((index . 0).Values.global | default dict) }}
{{- $image = printf "%s/%s" . (regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $image "") }}
{{- end }}
{{- $image }}
{{- end }}

{{- define "torchtally.nprocPerNode" -}}
{{ .Values.nprocPerNode | default (max 1 (int .Values.resources.gpu)) }}
{{- end }}

{{- define "torchtally.podMonitors" -}}
{{- if .Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor" }}true{{ end }}
{{- end }}

{{- /* Scrape annotations for a Prometheus without its operator. */}}
{{- define "torchtally.prometheusAnnotations" -}}
{{- if not (include "torchtally.podMonitors" .) }}
{{- toYaml (dict "prometheus.io/scrape" "true" "prometheus.io/port" (toString .Values.metrics.port)) }}
{{- end }}
{{- end }}

{{- /* The part of the job's spec that defines its pods. No controller changes them while they run. */}}
{{- define "torchtally.pods" -}}
{{- include (printf "torchtally.pods.%s" .Values.api) . }}
{{- end }}

{{- /* The part of a PyTorchJob's spec that the operator updates in place while the job runs. */}}
{{- define "torchtally.runPolicy" -}}
cleanPodPolicy: {{ .Values.cleanPodPolicy | quote }}
backoffLimit: {{ include "torchtally.backoffLimit" . }}
{{- if .Values.suspend }}
suspend: true
{{- end }}
{{- with .Values.managedBy }}
managedBy: {{ . | quote }}
{{- end }}
{{- with .Values.schedulingPolicy }}
schedulingPolicy:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $name := list "activeDeadlineSeconds" "ttlSecondsAfterFinished" }}
{{- with index $.Values $name | toString | trimSuffix "<nil>" }}
{{ $name }}: {{ . | float64 | int64 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "torchtally.pods.pytorchjob" -}}
nprocPerNode: {{ include "torchtally.nprocPerNode" . | quote }}
{{- with .Values.elasticPolicy }}
elasticPolicy:
  rdzvBackend: c10d
  {{- toYaml . | nindent 2 }}
{{- end }}
pytorchReplicaSpecs:
  {{- if not .Values.elasticPolicy }}
  Master:
    {{- include "torchtally.replica" (dict "root" . "type" "Master" "replicas" 1) | nindent 4 }}
  {{- end }}
  {{- if gt (int .Values.workers) 0 }}
  {{- $workers := include "torchtally.workers" . }}
  Worker:
    {{- include "torchtally.replica" (dict "root" . "type" "Worker" "replicas" $workers) | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "torchtally.replica" -}}
replicas: {{ .replicas }}
restartPolicy: {{ include "torchtally.restartPolicy" .root | quote }}
template:
  {{- include "torchtally.podTemplate" . | nindent 2 }}
{{- end }}
