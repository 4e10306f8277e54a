{{- /* Requests and limits of a pod: gpu, cpu and memory in both, then additions. A null value removes a resource. */}}
{{- define "torchtally.resources" -}}
{{- $values := .Values.resources }}
{{- $both := dict }}
{{- range $name := list "cpu" "memory" }}
{{- with index $values $name }}{{ $_ := set $both $name (include "torchtally.string" .) }}{{ end }}
{{- end }}
{{- if and (gt (int $values.gpu) 0) $values.gpuResourceName }}
{{- $_ := set $both $values.gpuResourceName (toString $values.gpu) }}
{{- end }}
{{- $resources := dict }}
{{- range $kind := list "requests" "limits" }}
{{- $own := deepCopy $both }}
{{- range $name, $quantity := index $values $kind }}
{{- $_ := set $own $name (include "torchtally.string" $quantity) }}
{{- if kindIs "invalid" $quantity }}{{ $_ := unset $own $name }}{{ end }}
{{- end }}
{{- $_ := set $resources $kind $own }}
{{- end }}
{{- with .Values.resourceClaims }}
{{- $claims := list }}
{{- range . }}{{ $claims = append $claims (pick . "name") }}{{ end }}
{{- $_ := set $resources "claims" $claims }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{- /* The chart's variables, except those that `env` sets, then `env`; from (dict "own" REPLICA "image" IMAGE). */}}
{{- define "torchtally.env" -}}
{{- $image := .image }}
{{- with .own }}
{{- $given := dict }}
{{- range .Values.env }}{{ $_ := set $given .name true }}{{ end }}
{{- $own := dict "TORCHTALLY_DEVICE" (include "torchtally.device" .) }}
{{- /* For the proof. The chart's version is in a ConfigMap, as the pods of a job cannot change. */}}
{{- $_ := set $own "TORCHTALLY_IMAGE" $image }}
{{- /* The agent kills the other ranks before the kubelet kills the agent, so that the agent sets the exit code. */}}
{{- $_ := set $own "PET_SHUTDOWN_TIMEOUT" (sub .Values.terminationGracePeriodSeconds 10 | toString) }}
{{- if .Values.data }}{{ $_ := set $own "TORCHTALLY_DATA" "/data" }}{{ end }}
{{- if and (eq (include "torchtally.restartPolicy" .) "ExitCode") (not .Values.runtime) }}
{{- $_ := set $own "TORCHTALLY_RETRIES" (include "torchtally.retries" .) }}
{{- end }}
{{- with .Values.tensorboard }}{{ $_ := set $own "TORCHTALLY_TENSORBOARD" . }}{{ end }}
{{- with .Values.network }}
{{- with .interface }}
{{- $_ := set $own "GLOO_SOCKET_IFNAME" . }}
{{- $_ := set $own "NCCL_SOCKET_IFNAME" (printf "=%s" .) }} {{- /* without =, NCCL matches prefixes */}}
{{- $_ := set $own "TP_SOCKET_IFNAME" (splitList "," . | first) }}
{{- end }}
{{- range $name, $value := .nccl }}{{ $_ := set $own (printf "NCCL_%s" $name) $value }}{{ end }}
{{- end }}
{{- /* Only the policy keeps others from RPC's ports. It applies neither to the host's network nor to a second one. */}}
{{- $otherNetwork := or .Values.hostNetwork (dig "interface" "" (.Values.network | default dict)) }}
{{- $usesRpc := has "parameter-server" (prepend (.Values.args | default list) .Values.task) }}
{{- if and $usesRpc .Values.networkPolicy.enabled (not $otherNetwork) }}
{{- $_ := set $own "TORCHTALLY_TRUSTED_NETWORK" "true" }}
{{- end }}
{{- with .Values.preflight }}{{ $_ := set $own "TORCHTALLY_PREFLIGHT" . }}{{ end }}
{{- /* The image's own is `auto`. */}}
{{- if ne (.Values.observe | default "auto") "auto" }}{{ $_ := set $own "TORCHTALLY_OBSERVE" .Values.observe }}{{ end }}
{{- $env := list }}
{{- range $name, $value := $own }}
{{- if not (hasKey $given $name) }}{{ $env = append $env (dict "name" $name "value" $value) }}{{ end }}
{{- end }}
{{- if not (hasKey $given "TORCHTALLY_CHART") }}
{{- $chart := dict "name" (printf "%s-chart" (include "torchtally.job" .)) "key" "version" "optional" true }}
{{- $env = append $env (dict "name" "TORCHTALLY_CHART" "valueFrom" (dict "configMapKeyRef" $chart)) }}
{{- end }}
{{- if and .Values.preflight (not (hasKey $given "TORCHTALLY_NODE")) }}
{{- $node := dict "fieldPath" "spec.nodeName" }}
{{- $env = append $env (dict "name" "TORCHTALLY_NODE" "valueFrom" (dict "fieldRef" $node)) }}
{{- end }}
{{- toYaml (concat $env .Values.env) }}
{{- end }}
{{- end }}

{{- /* The ports of the training container. The operator takes the rendezvous port from the one of this name. */}}
{{- define "torchtally.ports" -}}
{{- $ports := list }}
{{- with .Values.network }}{{ with .port }}
{{- $ports = append $ports (dict "name" "pytorchjob-port" "containerPort" .) }}
{{- end }}{{ end }}
{{- if .Values.metrics.enabled }}
{{- $ports = append $ports (dict "name" "metrics" "containerPort" .Values.metrics.port "protocol" "TCP") }}
{{- end }}
{{- toJson (concat $ports .Values.ports) }}
{{- end }}

{{- /* The key of a file in its ConfigMap. A key has no slash. */}}
{{- define "torchtally.fileKey" -}}
{{ ternary (printf "%s-%s" (base .) (sha256sum . | trunc 8)) . (contains "/" .) }}
{{- end }}

{{- /* A no-op container that makes the node pull the training image. It requests the same resources as the training
container, except devices, so that the pod's total request and QoS class stay the same. */}}
{{- define "torchtally.pull" -}}
name: pull
image: {{ include "torchtally.image" (list .root .own.Values.image) | quote }}
imagePullPolicy: {{ .own.Values.image.pullPolicy | quote }}
command: ["true"]
{{- $resources := include "torchtally.resources" .own | fromYaml }}
resources:
  {{- range $kind := list "requests" "limits" }}
  {{ $kind }}:
    {{- pick (index $resources $kind) "cpu" "memory" "ephemeral-storage" | toYaml | nindent 4 }}
  {{- end }}
{{- end }}

{{- /* Init containers, then sidecars as restartable init containers. The securityContext defaults to the training
container's. Workers pull the image first: the operator appends an init container that waits for the master. */}}
{{- define "torchtally.initContainers" -}}
{{- $values := .own.Values }}
{{- $given := $values.initContainers }}
{{- if .pulls }}{{ $given = prepend $given (include "torchtally.pull" . | fromYaml) }}{{ end }}
{{- range $values.sidecars }}{{ $given = append $given (merge (dict "restartPolicy" "Always") .) }}{{ end }}
{{- $security := pick $values "securityContext" }}
{{- $containers := list }}
{{- range $given }}
{{- $containers = append $containers (ternary . (merge (deepCopy .) $security) (hasKey . "securityContext")) }}
{{- end }}
{{- with $containers }}{{ toYaml . }}{{ end }}
{{- end }}

{{- /* Constraints, whose labelSelector defaults to the job's pods. */}}
{{- define "torchtally.topologySpreadConstraints" -}}
{{- $selector := include "torchtally.selector" .root | fromYaml }}
{{- $constraints := list }}
{{- range .values.topologySpreadConstraints }}
{{- $own := ternary . (set (deepCopy .) "labelSelector" $selector) (hasKey . "labelSelector") }}
{{- $constraints = append $constraints $own }}
{{- end }}
{{- with $constraints }}{{ toYaml . }}{{ end }}
{{- end }}

{{- /* What of the pod template a pod needs to mount the claim at /output, as JSON: torchtally_jobs.py fetch makes one
once the job is gone. */}}
{{- define "torchtally.claimReader" -}}
{{- $ofPyTorchJob := ternary "Worker" "Master" (gt (len .Values.elasticPolicy) 0) }}
{{- $type := ternary "Node" $ofPyTorchJob (eq .Values.api "trainjob") }}
{{- $pod := (include "torchtally.podTemplate" (dict "root" . "type" $type) | fromYaml).spec }}
{{- $training := first $pod.containers }}
{{- $container := pick $training "name" "image" "imagePullPolicy" "securityContext" }}
{{- range $training.volumeMounts }}
{{- if eq .mountPath "/output" }}{{ $_ := set $container "volumeMounts" (list .) }}{{ end }}
{{- end }}
{{- $reader := pick $pod "imagePullSecrets" "nodeSelector" "tolerations" "securityContext" }}
{{- range $pod.volumes }}{{ if eq .name "output" }}{{ $_ := set $reader "volumes" (list .) }}{{ end }}{{ end }}
{{- toJson (set $reader "containers" (list $container)) }}
{{- end }}

{{- /* The pod template, from (dict "root" $ "type" "Master"|"Worker"|"Node"). Each pod of a TrainJob is a Node. */}}
{{- define "torchtally.podTemplate" -}}
{{- $values := include "torchtally.replicaValues" . | fromJson }}
{{- $own := set (omit .root "Values") "Values" $values }}
{{- $mayBeRank0 := or (ne .type "Worker") (gt (len $values.elasticPolicy) 0) }}
{{- $keeps := and $values.model.enabled (or $mayBeRank0 (eq $values.model.accessMode "ReadWriteMany")) }}
{{- $metrics := $values.metrics.enabled }}
{{- $scraped := ternary (include "torchtally.prometheusAnnotations" .root | fromYaml) dict $metrics }}
{{- $image := include "torchtally.image" (list .root $values.image) }}
{{- $init := include "torchtally.initContainers" (dict "root" .root "own" $own "pulls" (not $mayBeRank0)) -}}
metadata:
  labels:
    {{- include "torchtally.podLabels" $own | nindent 4 }}
  {{- with merge (deepCopy $values.podAnnotations) $scraped }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "torchtally.serviceAccount" .root | quote }}
  automountServiceAccountToken: {{ $values.serviceAccount.automountToken }}
  {{- if eq .type "Node" }}
  restartPolicy: {{ ternary "OnFailure" "Never" (eq (include "torchtally.restartPolicy" $own) "OnFailure") | quote }}
  {{- end }}
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds | int64 }}
  {{- with $values.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- with $values.schedulerName }}
  schedulerName: {{ . | quote }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- if $values.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with $init }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ (include "torchtally.api" .root | fromYaml).container | quote }} # the name that the controller expects
      image: {{ $image | quote }}
      imagePullPolicy: {{ $values.image.pullPolicy | quote }}
      {{- with $values.command }}
      command:
        {{- include "torchtally.strings" . | nindent 8 }}
      {{- end }}
      {{- with $values.workingDir }}
      workingDir: {{ . | quote }}
      {{- end }}
      {{- with ternary (concat (list "run" $values.task) $values.args) $values.args (ne $values.task "") }}
      args:
        {{- include "torchtally.strings" . | nindent 8 }}
      {{- end }}
      env:
        {{- include "torchtally.env" (dict "own" $own "image" $image) | nindent 8 }}
        {{- if $metrics }}
        - name: TORCHTALLY_METRICS_PORT
          value: {{ $values.metrics.port | quote }}
        {{- end }}
      {{- with include "torchtally.ports" $own | fromJsonArray }}
      ports:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      resources:
        {{- include "torchtally.resources" $own | nindent 8 }}
      {{- with $values.securityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
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
          {{- with and $keeps (tpl $values.model.subPath .root) }}
          subPath: {{ . | quote }}
          {{- end }}
        {{- if $values.data }}
        - name: data
          mountPath: /data
          readOnly: true
        {{- end }}
        {{- if $values.files }}
        - name: files
          mountPath: /files
          readOnly: true
        {{- end }}
        {{- with $values.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ include "torchtally.string" $values.shmSize | quote }}
    - name: tmp
      emptyDir: {}
    - name: cache
      {{- toYaml ($values.cache | default (dict "emptyDir" dict)) | nindent 6 }}
    - name: output
      {{- if $keeps }}
      persistentVolumeClaim:
        claimName: {{ include "torchtally.claim" .root | quote }}
      {{- else }}
      emptyDir: {}
      {{- end }}
    {{- with $values.data }}
    - name: data
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if $values.files }}
    - name: files
      configMap:
        name: {{ include "torchtally.files" .root | quote }}
        items:
          {{- range $path, $_ := $values.files }}
          - {key: {{ include "torchtally.fileKey" $path | quote }}, path: {{ $path | quote }}}
          {{- end }}
    {{- end }}
    {{- with $values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $values.resourceClaims }}
  resourceClaims:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "torchtally.topologySpreadConstraints" (dict "root" .root "values" $values) }}
  topologySpreadConstraints:
    {{- . | nindent 4 }}
  {{- end }}
  # A Service named "master" would otherwise override MASTER_PORT.
  enableServiceLinks: false {{- /* last, because Helm changes the newlines at the end of a document */}}
{{- end }}
