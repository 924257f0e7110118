{{- define "cdcd.verify.labels" -}}
app.kubernetes.io/name: {{ printf "%s-verify" (include "cdcd.fullname" .) }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: verify
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}
