{{- /* The parts that define the pods of a TrainJob: its own spec, and the TrainingRuntime unless one exists. */}}
{{- define "torchtally.pods.trainjob" -}}
trainjob:
  {{- include "torchtally.trainJob" . | nindent 2 }}
{{- if not .Values.runtime }}
runtime:
  {{- include "torchtally.trainingRuntime" . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "torchtally.nodes" -}}
numNodes: {{ include "torchtally.podCount" . }}
{{- $processes := include "torchtally.nprocPerNode" . }}
{{- if ne $processes "auto" }}
numProcPerNode: {{ $processes }}
{{- else if not .Values.resources.gpu }}
numProcPerNode: 1 {{- /* Trainer's default is one per requested CPU */}}
{{- end }}
{{- end }}

{{- define "torchtally.trainJob" -}}
{{- with .Values.activeDeadlineSeconds }}
activeDeadlineSeconds: {{ . | int64 }}
{{- end }}
{{- if .Values.runtime }}
runtimeRef:
  {{- toYaml .Values.runtime | nindent 2 }}
trainer:
  {{- include "torchtally.nodes" . | nindent 2 }}
  {{- include "torchtally.trainerPatch" . | nindent 2 }}
runtimePatches:
  - trainingRuntimeSpec:
      template:
        spec:
          replicatedJobs:
            - name: node
              template:
                spec:
                  template:
                    {{- include "torchtally.podPatch" . | nindent 20 }}
    manager: torchtally/chart
{{- else }}
runtimeRef:
  kind: TrainingRuntime
  name: {{ include "torchtally.job" . | quote }}
trainer:
  {{- include "torchtally.nodes" . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "torchtally.trainingRuntime" -}}
{{- $restartPolicy := include "torchtally.restartPolicy" . -}}
mlPolicy:
  torch: {}
{{- with .Values.podGroupPolicy }}
podGroupPolicy:
  {{- toYaml . | nindent 2 }}
{{- end }}
template:
  {{- with .Values.annotations }}
  metadata:
    annotations:
      {{- toYaml . | nindent 6 }}
  {{- end }}
  spec:
    replicatedJobs:
      - name: node
        template:
          metadata:
            labels:
              trainer.kubeflow.org/trainjob-ancestor-step: trainer
          spec:
            backoffLimit: {{ ternary "0" (include "torchtally.backoffLimit" .) (eq $restartPolicy "Never") }}
            {{- if eq $restartPolicy "ExitCode" }}
            podFailurePolicy:
              rules:
                - action: FailJob
                  onExitCodes:
                    containerName: {{ (include "torchtally.api" . | fromYaml).container | quote }}
                    operator: In
                    values: {{ untilStep 1 128 1 | toJson }}
            {{- end }}
            template:
              {{- include "torchtally.podTemplate" (dict "root" . "type" "Node") | nindent 14 }}
{{- end }}

{{- /* The fields of a pod template that a TrainJob can pass to an existing runtime: in `trainer`, and in patches of the
container and the pod. The runtime sets those in `runtime`. */}}
{{- define "torchtally.patchableFields" -}}
trainer: [image, command, args, env, resources]
container: [name, volumeMounts, securityContext]
pod: [serviceAccountName, volumes, imagePullSecrets, securityContext, nodeSelector, affinity, tolerations,
  terminationGracePeriodSeconds]
runtime: [containers, automountServiceAccountToken, enableServiceLinks, restartPolicy, terminationMessagePolicy,
  imagePullPolicy]
{{- end }}

{{- /* The entries of a map with the listed keys, from (list MAP KEYS). */}}
{{- define "torchtally.pick" -}}
{{- $picked := dict }}
{{- range $name, $value := index . 0 }}
{{- if has $name (index $ 1) }}{{ $_ := set $picked $name $value }}{{ end }}
{{- end }}
{{- toYaml $picked }}
{{- end }}

{{- define "torchtally.trainerPatch" -}}
{{- $container := (include "torchtally.podTemplate" (dict "root" . "type" "Node") | fromYaml).spec.containers | first }}
{{- $patchable := include "torchtally.patchableFields" . | fromYaml }}
{{- $trainer := include "torchtally.pick" (list $container $patchable.trainer) | fromYaml }}
{{- toYaml (set (omit $trainer "resources") "resourcesPerNode" $container.resources) }}
{{- end }}

{{- define "torchtally.podPatch" -}}
{{- $patchable := include "torchtally.patchableFields" . | fromYaml }}
{{- $pod := include "torchtally.podTemplate" (dict "root" . "type" "Node") | fromYaml }}
{{- $container := include "torchtally.pick" (list (first $pod.spec.containers) $patchable.container) | fromYaml }}
{{- $spec := include "torchtally.pick" (list $pod.spec $patchable.pod) | fromYaml }}
{{- toYaml (dict "metadata" $pod.metadata "spec" (set $spec "containers" (list $container))) }}
{{- end }}

{{- /* The names of set values that a TrainJob cannot pass to an existing runtime. */}}
{{- define "torchtally.unpatchableValues" -}}
{{- $pod := include "torchtally.podTemplate" (dict "root" . "type" "Node") | fromYaml }}
{{- $known := list "dnsPolicy" }} {{- /* hostNetwork sets it */}}
{{- range include "torchtally.patchableFields" . | fromYaml }}{{ $known = concat $known . }}{{ end }}
{{- $named := dict "ports" "metrics.enabled (or ports)" "initContainers" "initContainers (or sidecars)" }}
{{- $names := list }}
{{- range concat (keys $pod.spec) (keys (first $pod.spec.containers)) }}
{{- if not (has . $known) }}{{ $names = append $names (get $named . | default .) }}{{ end }}
{{- end }}
{{- if .Values.podGroupPolicy }}{{ $names = append $names "podGroupPolicy" }}{{ end }}
{{- if .Values.serviceAccount.automountToken }}{{ $names = append $names "serviceAccount.automountToken" }}{{ end }}
{{- if ne .Values.image.pullPolicy "IfNotPresent" }}{{ $names = append $names "image.pullPolicy" }}{{ end }}
{{- if .Values.restartPolicy }}{{ $names = append $names "restartPolicy" }}{{ end }}
{{- if not (kindIs "invalid" .Values.backoffLimit) }}{{ $names = append $names "backoffLimit" }}{{ end }}
{{- sortAlpha $names | toYaml }}
{{- end }}
