{{- define "kvguard.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Short enough that every suffix of the chart still fits into 63 characters. */}}
{{- define "kvguard.fullname" -}}
{{- $name := include "kvguard.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kvguard.selectorLabels" -}}
app.kubernetes.io/name: "{{ include "kvguard.name" . }}"
app.kubernetes.io/instance: "{{ .Release.Name }}"
{{- end -}}

{{/* Of the pods of the Deployment; a pod of `helm test` must not be among them. */}}
{{- define "kvguard.podSelector" -}}
{{ include "kvguard.selectorLabels" . }}
app.kubernetes.io/component: proxy
{{- end -}}

{{- define "kvguard.labels" -}}
{{- $own := include "kvguard.selectorLabels" . | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/version" (.Chart.AppVersion | toString) -}}
{{- $_ := set $own "app.kubernetes.io/part-of" "kvguard" -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63) -}}
{{- toYaml (merge $own .Values.commonLabels) -}}
{{- end -}}

{{- define "kvguard.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "kvguard.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "kvguard.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "kvguard.port" -}}
{{- dig "listen" "port" 8080 .Values.config | int -}}
{{- end -}}

{{- define "kvguard.adminPort" -}}
{{- dig "listen" "admin_port" 9090 .Values.config | int -}}
{{- end -}}

{{/* The number of replicas there may be. */}}
{{- define "kvguard.maxReplicas" -}}
{{- if .Values.autoscaling.enabled -}}
{{- .Values.autoscaling.maxReplicas | int -}}
{{- else -}}
{{- max 1 (.Values.replicaCount | int) -}}
{{- end -}}
{{- end -}}

{{/* The number there is at least. */}}
{{- define "kvguard.minReplicas" -}}
{{- ternary .Values.autoscaling.minReplicas .Values.replicaCount .Values.autoscaling.enabled | int -}}
{{- end -}}

{{/* The settings file. */}}
{{- define "kvguard.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if not (hasKey $config "share") -}}
{{- $_ := set $config "share" (divf 1.0 (include "kvguard.maxReplicas" . | float64)) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* The part of the settings that running pods do not take over: what `kvguard.reload` leaves out. */}}
{{- define "kvguard.restartOnly" -}}
{{- $config := .Values.config -}}
{{- $fixed := omit $config "mode" "share" "routing" "health" "tiers" "degrade" "classes" "overrides" "tenants" "identity" "reject" "waiting" "telemetry" "signals" "forecast" "limits" "streams" "backends" -}}
{{- $backends := list -}}
{{- range $config.backends -}}
{{- $backends = append $backends (omit . "mode") -}}
{{- end -}}
{{- $_ := set $fixed "backends" $backends -}}
{{- $_ := set $fixed "telemetry" (pick ($config.telemetry | default dict) "interval_seconds" "timeout_seconds") -}}
{{- $_ := set $fixed "forecast" (pick ($config.forecast | default dict) "state_file" "state_interval_seconds") -}}
{{- toYaml $fixed -}}
{{- end -}}

{{/* Both waits of kvguard after SIGTERM, in whole seconds. */}}
{{- define "kvguard.waits" -}}
{{- $listen := .Values.config.listen | default dict -}}
{{- ceil (addf (dig "prestop_seconds" 5.0 $listen | float64) (dig "drain_seconds" 30.0 $listen | float64)) | int -}}
{{- end -}}

{{- define "kvguard.gracePeriod" -}}
{{- .Values.terminationGracePeriodSeconds | default (add (include "kvguard.waits" . | int) 10) | int -}}
{{- end -}}

{{/* Name of the job in Prometheus: the rules look for kvguard in it. */}}
{{- define "kvguard.job" -}}
{{- $name := include "kvguard.fullname" . -}}
{{- ternary $name (printf "kvguard-%s" $name) (contains "kvguard" $name) -}}
{{- end -}}

{{- define "kvguard.scrape" -}}
- port: admin
  path: /metrics
  interval: {{ .Values.monitor.interval }}
  scrapeTimeout: {{ .Values.monitor.scrapeTimeout }}
  honorLabels: false
  relabelings:
    - action: replace
      targetLabel: job
      replacement: "{{ include "kvguard.job" . }}"
    {{- with .Values.monitor.relabelings }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.monitor.metricRelabelings }}
  metricRelabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
