{{- define "cdcd.mirror.selectorLabels" -}}
app.kubernetes.io/name: {{ printf "%s-mirror" (include "cdcd.fullname" .) }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "cdcd.mirror.labels" -}}
{{ include "cdcd.mirror.selectorLabels" . }}
app.kubernetes.io/component: mirror
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "cdcd.mirror.image" -}}
{{- with .Values.mirror.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cdcd.mirror.args" -}}
{{- $mirror := .Values.mirror -}}
{{- if not $mirror.target -}}
{{- fail "mirror.target is empty: the mirror needs the URI of its target (see values.yaml)" -}}
{{- end -}}
- python
- -m
- cdcd.spark
- mirror
- --config=/etc/cdcd/config/cdcd.yaml
- {{ printf "--target=%s" $mirror.target | quote }}
{{- range $name, $value := $mirror.targetOptions }}
- {{ printf "--target-option=%s=%s" $name $value | quote }}
{{- end }}
{{- if $mirror.targetSecret.existingSecret }}
{{- range $name, $key := $mirror.targetSecret.options }}
- {{ printf "--target-option=%s=file:/etc/cdcd/target/%s" $name $name | quote }}
{{- end }}
{{- end }}
- {{ printf "--cores=%d" (int $mirror.cores) }}
- {{ printf "--memory=%s" $mirror.memory | quote }}
- {{ printf "--retry-s=%d" (int $mirror.retrySeconds) }}
- --metrics-host=0.0.0.0
- {{ printf "--metrics-port=%d" (int $mirror.metricsPort) }}
{{- range $mirror.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* The mirror reads topics and schemas: it has no secret and no certificate of PostgreSQL. */}}
{{- define "cdcd.mirror.volumeMounts" -}}
- {name: config, mountPath: /etc/cdcd/config, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if include "cdcd.mirror.secretSources" . }}
- {name: secrets, mountPath: /etc/cdcd/secrets, readOnly: true}
{{- end }}
{{- if .Values.mirror.targetSecret.existingSecret }}
- {name: target, mountPath: /etc/cdcd/target, readOnly: true}
{{- end }}
{{- range $endpoint, $tls := omit .Values.tls "postgres" }}
{{- if $tls.existingSecret }}
- {name: tls-{{ $endpoint }}, mountPath: /etc/cdcd/tls/{{ $endpoint }}, readOnly: true}
{{- end }}
{{- end }}
{{- with .Values.mirror.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "cdcd.mirror.secretSources" -}}
{{- $secrets := merge (dict "postgres" (dict "existingSecret" "")) (omit .Values.secrets "postgres") -}}
{{- include "cdcd.secretSources" (dict "Values" (dict "secrets" $secrets)) -}}
{{- end -}}

{{- define "cdcd.mirror.volumes" -}}
- name: config
  configMap: {name: {{ include "cdcd.fullname" . }}}
- name: tmp
  emptyDir: {sizeLimit: {{ .Values.mirror.tmp.sizeLimit }}}
{{- with include "cdcd.mirror.secretSources" . }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- . | nindent 6 }}
{{- end }}
{{- with .Values.mirror.targetSecret }}
{{- if .existingSecret }}
- name: target
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items:
      {{- range $name, $key := .options }}
      - {key: {{ $key | quote }}, path: {{ $name | quote }}}
      {{- end }}
{{- end }}
{{- end }}
{{- range $endpoint, $tls := omit .Values.tls "postgres" }}
{{- if $tls.existingSecret }}
- name: tls-{{ $endpoint }}
  secret:
    secretName: {{ $tls.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- with .Values.mirror.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
