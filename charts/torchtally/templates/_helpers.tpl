{{- define "torchtally.job" -}}
{{ .Values.jobName | default .Release.Name }}
{{- end }}

{{- define "torchtally.claim" -}}
{{ .Values.model.existingClaim | default (printf "%s-model" (include "torchtally.job" .)) }}
{{- end }}

{{- define "torchtally.podLabels" -}}
{{- toYaml (mergeOverwrite (dict
    "app.kubernetes.io/name" .Chart.Name
    "app.kubernetes.io/instance" .Release.Name
  ) (deepCopy .Values.podLabels)) }}
{{- end }}

{{- define "torchtally.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "torchtally.device" -}}
{{ ternary "cuda" "cpu" (gt (int .Values.resources.gpu) 0) }}
{{- end }}

{{- define "torchtally.image" -}}
{{- $device := include "torchtally.device" . }}
{{- with .Values.image }}
{{- $tag := .tag | default (ternary "" (printf "%s-%s" $.Chart.AppVersion $device) (ne .digest "")) }}
{{- .repository }}{{ with $tag }}:{{ . }}{{ end }}{{ with .digest }}@{{ . }}{{ end }}
{{- end }}
{{- end }}

{{- define "torchtally.nprocPerNode" -}}
{{ .Values.nprocPerNode | default (max 1 (int .Values.resources.gpu)) }}
{{- end }}

{{- /* Requests and limits of a pod: gpu, cpu and memory in both, then what the values add or, by null, take away. */}}
{{- define "torchtally.resources" -}}
{{- $values := .Values.resources }}
{{- $both := dict }}
{{- range $name := list "cpu" "memory" }}
{{- with index $values $name }}{{ $_ := set $both $name (toString .) }}{{ end }}
{{- end }}
{{- if gt (int $values.gpu) 0 }}{{ $_ := set $both $values.gpuResourceName (toString $values.gpu) }}{{ end }}
{{- $resources := dict }}
{{- range $kind := list "requests" "limits" }}
{{- $own := deepCopy $both }}
{{- range $name, $quantity := index $values $kind }}
{{- if kindIs "invalid" $quantity }}{{ $_ := unset $own $name }}{{ else }}{{ $_ := set $own $name (toString $quantity) }}{{ end }}
{{- end }}
{{- $_ := set $resources $kind $own }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{- /* The operator adds up the restarts of all pods, and a fault of one restarts every one of them. */}}
{{- define "torchtally.backoffLimit" -}}
{{- $given := .Values.backoffLimit }}
{{- if kindIs "invalid" $given }}{{ mul 6 (add1 .Values.workers) }}{{ else }}{{ $given | int64 }}{{ end }}
{{- end }}

{{- /* The chart's own variables, less those that the values set, then the values'. */}}
{{- define "torchtally.env" -}}
{{- $given := dict }}
{{- range .Values.env }}{{ $_ := set $given .name true }}{{ end }}
{{- $own := dict "TORCHTALLY_DEVICE" (include "torchtally.device" .) }}
{{- /* The agent ends what is left of its ranks before the kubelet ends the agent, so that the exit code is its own. */}}
{{- $_ := set $own "PET_SHUTDOWN_TIMEOUT" (sub .Values.terminationGracePeriodSeconds 10 | toString) }}
{{- if .Values.data }}{{ $_ := set $own "TORCHTALLY_DATA" "/data" }}{{ end }}
{{- $env := list }}
{{- range $name, $value := $own }}
{{- if not (hasKey $given $name) }}{{ $env = append $env (dict "name" $name "value" $value) }}{{ end }}
{{- end }}
{{- toYaml (concat $env .Values.env) }}
{{- end }}

{{- /* One entry of pytorchReplicaSpecs, from (dict "root" $ "type" "Master"|"Worker" "replicas" N). */}}
{{- define "torchtally.replica" -}}
{{- $values := .root.Values -}}
replicas: {{ .replicas }}
restartPolicy: {{ $values.restartPolicy }}
template:
  metadata:
    labels:
      {{- include "torchtally.podLabels" .root | nindent 6 }}
    {{- with $values.podAnnotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    serviceAccountName: {{ include "torchtally.job" .root }}
    automountServiceAccountToken: false
    # A Service named "master" would otherwise put a MASTER_PORT of its own into the pods.
    enableServiceLinks: false
    terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds | int64 }}
    {{- with $values.podSecurityContext }}
    securityContext:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $values.image.pullSecrets }}
    imagePullSecrets:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    containers:
      - name: pytorch # the operator looks for this name
        image: {{ include "torchtally.image" .root }}
        imagePullPolicy: {{ $values.image.pullPolicy }}
        {{- with $values.command }}
        command:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        {{- with ternary (concat (list "run" $values.task) $values.args) $values.args (ne $values.task "") }}
        args:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        env:
          {{- include "torchtally.env" .root | nindent 10 }}
        {{- with $values.envFrom }}
        envFrom:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        resources:
          {{- include "torchtally.resources" .root | nindent 10 }}
        {{- with $values.securityContext }}
        securityContext:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        terminationMessagePolicy: FallbackToLogsOnError
        volumeMounts:
          - name: shm
            mountPath: /dev/shm
          - name: tmp
            mountPath: /tmp
          - name: cache
            mountPath: /cache
          - name: output
            mountPath: /output
          {{- if $values.data }}
          - name: data
            mountPath: /data
            readOnly: true
          {{- end }}
    volumes:
      - name: shm
        emptyDir:
          medium: Memory
          sizeLimit: {{ $values.shmSize }}
      - name: tmp
        emptyDir: {}
      - name: cache
        emptyDir: {}
      - name: output
        {{- if and $values.model.enabled (eq .type "Master") }}
        persistentVolumeClaim:
          claimName: {{ include "torchtally.claim" .root }}
        {{- else }}
        emptyDir: {}
        {{- end }}
      {{- with $values.data }}
      - name: data
        {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- with $values.nodeSelector }}
    nodeSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $values.affinity }}
    affinity:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $values.tolerations }}
    tolerations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end }}

{{- /* Overrides for `kubectl run`: a pod that sleeps with the model's claim mounted, so that `kubectl cp` can read it. */}}
{{- define "torchtally.fetchPod" -}}
{{- $container := dict
  "name" (printf "%s-fetch" (include "torchtally.job" .))
  "image" (include "torchtally.image" .)
  "command" (list "sleep" "3600")
  "securityContext" .Values.securityContext
  "volumeMounts" (list (dict "name" "model" "mountPath" "/output" "readOnly" true)) }}
{{- $spec := dict
  "containers" (list $container)
  "securityContext" .Values.podSecurityContext
  "volumes" (list (dict "name" "model" "persistentVolumeClaim" (dict "claimName" (include "torchtally.claim" .)))) }}
{{- with .Values.image.pullSecrets }}{{ $_ := set $spec "imagePullSecrets" . }}{{ end }}
{{- with .Values.nodeSelector }}{{ $_ := set $spec "nodeSelector" . }}{{ end }}
{{- with .Values.tolerations }}{{ $_ := set $spec "tolerations" . }}{{ end }}
{{- toJson (dict "spec" $spec) }}
{{- end }}
