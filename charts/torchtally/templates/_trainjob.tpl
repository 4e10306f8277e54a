{{- /* The pods of a TrainJob: what it says itself, and the TrainingRuntime that the chart makes for it, if any. */}}
{{- define "torchtally.podsOf.trainjob" -}}
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
numProcPerNode: 1 {{- /* Trainer would take one for each CPU that is asked for */}}
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
  {{- include "torchtally.ofTrainer" . | nindent 2 }}
runtimePatches:
  - manager: torchtally/chart
    trainingRuntimeSpec:
      template:
        spec:
          replicatedJobs:
            - name: node
              template:
                spec:
                  template:
                    {{- include "torchtally.podPatch" . | nindent 20 }}
{{- else }}
runtimeRef:
  kind: TrainingRuntime
  name: {{ include "torchtally.job" . }}
trainer:
  {{- include "torchtally.nodes" . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "torchtally.trainingRuntime" -}}
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
            backoffLimit: {{ ternary "0" (include "torchtally.backoffLimit" .) (eq .Values.restartPolicy "Never") }}
            {{- if eq .Values.restartPolicy "ExitCode" }}
            podFailurePolicy:
              rules:
                - action: FailJob
                  onExitCodes:
                    containerName: {{ (include "torchtally.api" . | fromYaml).container }}
                    operator: In
                    values: {{ untilStep 1 128 1 | toJson }}
            {{- end }}
            template:
              {{- include "torchtally.podTemplate" (dict "root" . "type" "Node") | nindent 14 }}
{{- end }}

{{- /* What a TrainJob can say of the pods to a runtime of the cluster; the rest of a template is the runtime's affair. */}}
{{- define "torchtally.patchable" -}}
trainer: [image, command, args, env, resources]
container: [name, volumeMounts, securityContext]
pod: [serviceAccountName, volumes, imagePullSecrets, securityContext, nodeSelector, affinity, tolerations, terminationGracePeriodSeconds]
runtime: [containers, automountServiceAccountToken, enableServiceLinks, restartPolicy, terminationMessagePolicy, imagePullPolicy]
{{- end }}

{{- /* Of a map what a list names, from (list MAP NAMES). */}}
{{- define "torchtally.picked" -}}
{{- $picked := dict }}
{{- range $name, $value := index . 0 }}{{ if has $name (index $ 1) }}{{ $_ := set $picked $name $value }}{{ end }}{{ end }}
{{- toYaml $picked }}
{{- end }}

{{- define "torchtally.ofTrainer" -}}
{{- $container := (include "torchtally.podTemplate" (dict "root" . "type" "Node") | fromYaml).spec.containers | first }}
{{- $trainer := include "torchtally.picked" (list $container (include "torchtally.patchable" . | fromYaml).trainer) | fromYaml }}
{{- toYaml (set (omit $trainer "resources") "resourcesPerNode" $container.resources) }}
{{- end }}

{{- define "torchtally.podPatch" -}}
{{- $patchable := include "torchtally.patchable" . | fromYaml }}
{{- $pod := include "torchtally.podTemplate" (dict "root" . "type" "Node") | fromYaml }}
{{- $container := include "torchtally.picked" (list (first $pod.spec.containers) $patchable.container) | fromYaml }}
{{- $spec := include "torchtally.picked" (list $pod.spec $patchable.pod) | fromYaml }}
{{- toYaml (dict "metadata" $pod.metadata "spec" (set $spec "containers" (list $container))) }}
{{- end }}

{{- /* The values of pods that it cannot say there, by name. */}}
{{- define "torchtally.unpatchable" -}}
{{- $pod := include "torchtally.podTemplate" (dict "root" . "type" "Node") | fromYaml }}
{{- $known := list }}
{{- range include "torchtally.patchable" . | fromYaml }}{{ $known = concat $known . }}{{ end }}
{{- $named := dict "ports" "metrics.enabled" "initContainers" "initContainers (or sidecars)" }}
{{- $names := list }}
{{- range concat (keys $pod.spec) (keys (first $pod.spec.containers)) }}
{{- if not (has . $known) }}{{ $names = append $names (get $named . | default .) }}{{ end }}
{{- end }}
{{- if .Values.podGroupPolicy }}{{ $names = append $names "podGroupPolicy" }}{{ end }}
{{- if .Values.serviceAccount.automountToken }}{{ $names = append $names "serviceAccount.automountToken" }}{{ end }}
{{- if not .Values.serviceAccount.create }}{{ $names = append $names "serviceAccount.create=false" }}{{ end }}
{{- if ne .Values.image.pullPolicy "IfNotPresent" }}{{ $names = append $names "image.pullPolicy" }}{{ end }}
{{- if ne .Values.restartPolicy "OnFailure" }}{{ $names = append $names "restartPolicy" }}{{ end }}
{{- if not (kindIs "invalid" .Values.backoffLimit) }}{{ $names = append $names "backoffLimit" }}{{ end }}
{{- sortAlpha $names | toYaml }}
{{- end }}
