{{/* What values get wrong together, each with what to do about it. */}}
{{- define "kvguard.validate" -}}
{{- $listen := .Values.config.listen | default dict -}}
{{- if le (include "kvguard.gracePeriod" . | int) (include "kvguard.waits" . | int) -}}
{{- fail (printf "terminationGracePeriodSeconds (%s) must be longer than config.listen.prestop_seconds and drain_seconds together (%s), or running answers are cut; leave it empty to have it computed" (include "kvguard.gracePeriod" .) (include "kvguard.waits" .)) -}}
{{- end -}}
{{- if or (lt (include "kvguard.port" . | int) 1024) (lt (include "kvguard.adminPort" . | int) 1024) -}}
{{- fail "config.listen.port and admin_port must be 1024 or above: the container may not open lower ones; service.port may be any" -}}
{{- end -}}
{{- if eq (include "kvguard.port" .) (include "kvguard.adminPort" .) -}}
{{- fail "config.listen.port and admin_port must differ" -}}
{{- end -}}
{{- if has (dig "host" "0.0.0.0" $listen) (list "127.0.0.1" "localhost" "::1") -}}
{{- fail "config.listen.host must be an address that probes and Services reach, such as 0.0.0.0" -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if regexMatch "^KVGUARD_(LISTEN(__.*)?|SHARE)$" (upper .name) -}}
{{- fail (printf "extraEnv: set %s under config, where the chart sees it: ports, grace period and share depend on it" .name) -}}
{{- end -}}
{{- end -}}
{{- if .Values.autoscaling.enabled -}}
{{- if gt (.Values.autoscaling.minReplicas | int) (.Values.autoscaling.maxReplicas | int) -}}
{{- fail "autoscaling.minReplicas must not be above maxReplicas" -}}
{{- end -}}
{{- end -}}
{{- if .Values.keda.enabled -}}
{{- if not .Values.keda.scaleTargetRef.name -}}
{{- fail "keda.scaleTargetRef.name must name what runs the model servers" -}}
{{- end -}}
{{- if eq .Values.keda.scaleTargetRef.name (include "kvguard.fullname" .) -}}
{{- fail "keda.scaleTargetRef must name the model servers: kvguard itself is scaled by autoscaling" -}}
{{- end -}}
{{- if gt (.Values.keda.minReplicaCount | int) (.Values.keda.maxReplicaCount | int) -}}
{{- fail "keda.minReplicaCount must not be above maxReplicaCount" -}}
{{- end -}}
{{- end -}}
{{- $pdb := .Values.podDisruptionBudget -}}
{{- if and (ne (toString $pdb.minAvailable) "") (ne (toString $pdb.maxUnavailable) "") -}}
{{- fail "podDisruptionBudget: set minAvailable or maxUnavailable, not both" -}}
{{- end -}}
{{- if and .Values.state.existingClaim (gt (include "kvguard.maxReplicas" . | int) 1) -}}
{{- fail "state.existingClaim is for one replica: several would overwrite each other's file" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute.parentRefs must name a Gateway" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.hosts must name a host" -}}
{{- end -}}
{{- end -}}
