{{- /* Errors in the values of all pods, or of one type, from (dict "root" $ "prefix" "master." "values" VALUES). */}}
{{- define "torchtally.podErrors" -}}
{{- $values := .values }}
{{- $prefix := .prefix }}
{{- $gpus := int $values.resources.gpu }}
{{- $gpuName := $values.resources.gpuResourceName }}
{{- $nproc := include "torchtally.nprocPerNode" .root | int }}
{{- $most := int .root.Values.resources.gpu }}
{{- $program := $values.args | first | default "-" | toString }}
{{- $rules := list
  (list (and $values.task $values.command) $prefix
    (printf "command is set, but task is %q: to run your own command, set task to \"\"" $values.task))
  (list (and $values.task (not (hasPrefix "-" $program))) $prefix
    (printf "args begin with %q, but task is %q, which takes options only: " $program $values.task)
    "to run your own program, set task to \"\"")
  (list (gt $gpus $most) $prefix
    (printf "resources.gpu is %d but resources.gpu is %d, which selects the image and must be the largest" $gpus $most))
  (list (and (lt $gpus $most) (gt $gpus 0) (gt $nproc $gpus))
    (printf "nprocPerNode is %d but %sresources.gpu is %d: each process needs its own GPU" $nproc $prefix $gpus))
}}

{{- range $kind := list "requests" "limits" }}
{{- range $name, $_ := index $values.resources $kind }}
{{- $rules = append $rules (list (or (eq $name $gpuName) (regexMatch "/gpu$|^nvidia\\.com/mig-" $name)) $prefix
  (printf "resources.%s contains %s: request GPUs with resources.gpu and resources.gpuResourceName" $kind $name)) }}
{{- end }}
{{- end }}
{{- $resources := include "torchtally.resources" (dict "Values" $values) | fromYaml }}
{{- range $name, $request := $resources.requests }}
{{- with dig "limits" $name "" $resources }}
{{- $exceeds := gt (include "torchtally.quantity" $request | float64) (include "torchtally.quantity" . | float64) }}
{{- $rules = append $rules (list $exceeds $prefix
  (printf "resources: the %s request %s exceeds the limit %s" $name $request .)) }}
{{- end }}
{{- end }}

{{- $operators := list "MASTER_ADDR" "MASTER_PORT" "WORLD_SIZE" "RANK" "PET_MASTER_ADDR" "PET_MASTER_PORT" "PET_NNODES"
  "PET_NODE_RANK" "PET_NPROC_PER_NODE" }}
{{- range $values.env }}
{{- $rules = concat $rules (list
  (list (has .name $operators) $prefix
    (printf "env sets %s, which the operator sets: set workers and nprocPerNode instead" .name))
  (list (and (eq .name "TORCHTALLY_METRICS_PORT") $values.metrics.enabled) $prefix
    "env sets TORCHTALLY_METRICS_PORT: set metrics.port instead")
) }}
{{- end }}

{{- $mounts := dict "shm" "/dev/shm" "tmp" "/tmp" "cache" "/cache" "output" "/output" "data" "/data" "files" "/files" }}
{{- $volumes := keys $mounts }}
{{- range $values.volumes }}
{{- $name := .name }}
{{- $volumes = append $volumes $name }}
{{- $several := include "torchtally.severalKeys" (omit . "name") }}
{{- $rules = concat $rules (list
  (list $several $prefix (printf "volumes: the volume %s has %s: keep one of them" $name $several))
  (list (hasKey $mounts $name) $prefix
    (printf "volumes contains %s, which is a volume of the chart: choose another name" $name))
) }}
{{- end }}
{{- range $values.volumeMounts }}
{{- $inImage := and (not $values.command) (regexMatch "^/opt(/torchtally(/venv)?)?/?$" .mountPath) }}
{{- $rules = concat $rules (list
  (list (has (trimSuffix "/" .mountPath) (values $mounts)) $prefix
    (printf "volumeMounts contains %s, where the chart mounts a volume: choose another path" .mountPath))
  (list (or (eq .mountPath "/") $inImage) $prefix
    (printf "volumeMounts contains %s, where the image has its program: choose another path" .mountPath))
  (list (not (has .name $volumes)) $prefix
    (printf "volumeMounts refers to %s, but volumes has no volume of that name" .name))
) }}
{{- end }}

{{- $own := dict (include "torchtally.api" .root | fromYaml).container "the training container" }}
{{- if and (eq .root.Values.api "pytorchjob") (not .root.Values.elasticPolicy) }}
{{- $_ := set $own "pull" "an init container of the chart" }}
{{- end }}
{{- range concat $values.initContainers $values.sidecars }}
{{- $rules = append $rules (list (hasKey $own .name) $prefix
  (printf "initContainers or sidecars contains %s, which is %s: choose another name" .name (get $own .name))) }}
{{- end }}
{{- range $values.sidecars }}
{{- $rules = append $rules (list (ne (.restartPolicy | default "Always") "Always") $prefix
  (printf "sidecars: %s has restartPolicy %s, but a sidecar always restarts: " .name (.restartPolicy | default ""))
  "remove restartPolicy, or move the container to initContainers") }}
{{- end }}
{{- $ports := include "torchtally.ports" (dict "Values" $values) | fromYamlArray }}
{{- $lists := list
  (list "env" $values.env "name")
  (list "topologySpreadConstraints" $values.topologySpreadConstraints "topologyKey" "whenUnsatisfiable")
  (list "resourceClaims" $values.resourceClaims "name")
  (list "ports" $ports "containerPort" "protocol")
  (list "ports" $ports "name")
  (list "volumes" $values.volumes "name")
  (list "volumeMounts" $values.volumeMounts "mountPath")
  (list "initContainers and sidecars" (concat $values.initContainers $values.sidecars) "name")
}}
{{- range $list := list "initContainers" "sidecars" }}
{{- range $i, $container := index $values $list }}
{{- range $part := list
  (list "env" "name")
  (list "ports" "containerPort" "protocol")
  (list "ports" "name")
  (list "volumeMounts" "mountPath")
}}
{{- $items := list (printf "%s[%d].%s" $list $i (first $part)) (index $container (first $part)) }}
{{- $lists = append $lists (concat $items (rest $part)) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $lists }}
{{- range include "torchtally.duplicates" . | fromYamlArray }}
{{- $rules = append $rules (list true $prefix .) }}
{{- end }}
{{- end }}
{{- include "torchtally.refused" $rules }}
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
{{- if has $named $known }}
{{- $errors = append $errors (printf "%s[%d]: Duplicate value: %s" (first $call) $i (toRawJson $named)) }}
{{- end }}
{{- $known = append $known $named }}
{{- end }}
{{- toYaml $errors }}
{{- end }}

{{- /* A Kubernetes quantity as a number. */}}
{{- define "torchtally.quantity" -}}
{{- $unit := regexFind "[A-Za-z]+$" . }}
{{- $factors := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0
  "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 }}
{{- mulf (trimSuffix $unit . | float64) (index $factors $unit) }}
{{- end }}
