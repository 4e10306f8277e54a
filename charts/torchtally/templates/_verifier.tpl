{{- /* Metadata and spec of the verifier's pod, for `helm test` and for the Job, from (dict "root" $ "name" NAME
"annotations" ANNOTATIONS "options" OPTIONS). A Job's pod has no name. */}}
{{- define "torchtally.verifierPod" -}}
{{- $ := .root -}}
{{- $image := include "torchtally.image" (list $ $.Values.image) }}
{{- with $.Values.verifier.image }}{{ $image = include "torchtally.mirrored" (list $ .) }}{{ end -}}
metadata:
  {{- with .name }}
  name: {{ . | quote }}
  {{- end }}
  labels:
    {{- include "torchtally.podLabels" $ | nindent 4 }}
  {{- with mergeOverwrite (deepCopy $.Values.podAnnotations) .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "torchtally.verifier" $ | quote }}
  automountServiceAccountToken: true # to read the pods' logs from the API server
  enableServiceLinks: false
  {{- with $.Values.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: verify
      image: {{ $image | quote }}
      imagePullPolicy: {{ $.Values.image.pullPolicy | quote }}
      command: [torchtally, verify]
      args: {{ concat (list "--job" (include "torchtally.job" $) "-n" $.Release.Namespace) .options | toJson }}
      resources:
        {{- include "torchtally.ownResources" $ | nindent 8 }}
      {{- with $.Values.securityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
  {{- with $.Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  restartPolicy: Never {{- /* last, because Helm changes the newlines at the end of a document */}}
{{- end }}

{{- /* Of pods that don't train. A ResourceQuota admits none without. */}}
{{- define "torchtally.ownResources" -}}
requests: {cpu: 100m, memory: 128Mi}
limits: {cpu: "1", memory: 1Gi}
{{- end }}

{{- define "torchtally.verifierJobPod" -}}
{{- include "torchtally.verifierPod" (dict "root" . "annotations" dict "options" (list "--wait")) }}
{{- end }}

{{- /* A Job's pod is immutable, so another pod needs another name. So do other pods of the training: the Job that has
verified the old ones says nothing of them. */}}
{{- define "torchtally.verifierJob" -}}
{{- $pods := print (include "torchtally.podsHash" .) (include "torchtally.verifierJobPod" .) }}
{{- include "torchtally.job" . }}-verify-{{ $pods | sha256sum | trunc 8 }}
{{- end }}
