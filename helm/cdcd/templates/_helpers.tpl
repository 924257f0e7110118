{{- define "cdcd.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cdcd.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "cdcd.labels" -}}
{{ include "cdcd.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "cdcd.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "cdcd.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "cdcd.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* cdcd.yaml: the values' config, with the address for the probes and the paths of the mounted secrets. */}}
{{- define "cdcd.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if not $config -}}
{{- fail "config is empty: cdcd needs name, source.dsn, sink.bootstrap_servers and registry.url (see values.yaml)" -}}
{{- end -}}
{{- if kindIs "string" $config.registry -}}
{{- $_ := set $config "registry" (dict "url" $config.registry) -}}
{{- end -}}
{{- $given := dict
      "admin" (dict "host" "0.0.0.0" "host_names" (list (printf "%s.%s" (include "cdcd.fullname" .) .Release.Namespace)))
      "source" (dict) "sink" (dict "secret_files" (dict)) "registry" (dict) -}}
{{- if .Values.secrets.postgres.existingSecret -}}
{{- $_ := set $given.source "password_file" "/etc/cdcd/secrets/postgres-password" -}}
{{- end -}}
{{- if .Values.secrets.registry.existingSecret -}}
{{- $_ := set $given.registry "password_file" "/etc/cdcd/secrets/registry-password" -}}
{{- end -}}
{{- if .Values.secrets.kafka.existingSecret -}}
{{- range $property, $key := .Values.secrets.kafka.properties -}}
{{- $_ := set $given.sink.secret_files $property (printf "/etc/cdcd/secrets/kafka-%s" $property) -}}
{{- end -}}
{{- end -}}
{{- $config = mergeOverwrite $given $config -}}
{{- $timeout := int64 (default 30000 $config.shutdown_timeout_ms) -}}
{{- if gt (add $timeout 5000) (mul 1000 (int64 .Values.terminationGracePeriodSeconds)) -}}
{{- fail (printf "config.shutdown_timeout_ms is %d: terminationGracePeriodSeconds (%d) must be at least 5 s more"
      $timeout (int64 .Values.terminationGracePeriodSeconds)) -}}
{{- end -}}
{{ toYaml $config }}
{{- end -}}

{{- define "cdcd.port" -}}
{{- dig "admin" "port" 8080 .Values.config | int -}}
{{- end -}}

{{- define "cdcd.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "cdcd.securityContext" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "cdcd.volumeMounts" -}}
- {name: config, mountPath: /etc/cdcd/config, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if include "cdcd.secretSources" . }}
- {name: secrets, mountPath: /etc/cdcd/secrets, readOnly: true}
{{- end }}
{{- range $endpoint, $tls := .Values.tls }}
{{- if $tls.existingSecret }}
- {name: tls-{{ $endpoint }}, mountPath: /etc/cdcd/tls/{{ $endpoint }}, readOnly: true}
{{- end }}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "cdcd.volumes" -}}
- name: config
  configMap: {name: {{ include "cdcd.fullname" . }}}
- name: tmp
  emptyDir: {sizeLimit: {{ .Values.tmp.sizeLimit }}}
{{- with include "cdcd.secretSources" . }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- . | nindent 6 }}
{{- end }}
{{- range $endpoint, $tls := .Values.tls }}
{{- if $tls.existingSecret }}
- name: tls-{{ $endpoint }}
  secret:
    secretName: {{ $tls.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "cdcd.secretSources" -}}
{{- with .Values.secrets.postgres }}
{{- if .existingSecret }}
- secret:
    name: {{ .existingSecret }}
    items:
      - {key: {{ .key | quote }}, path: postgres-password}
{{- end }}
{{- end }}
{{- with .Values.secrets.kafka }}
{{- if .existingSecret }}
- secret:
    name: {{ .existingSecret }}
    items:
      {{- range $property, $key := .properties }}
      - {key: {{ $key | quote }}, path: {{ printf "kafka-%s" $property | quote }}}
      {{- end }}
{{- end }}
{{- end }}
{{- with .Values.secrets.registry }}
{{- if .existingSecret }}
- secret:
    name: {{ .existingSecret }}
    items:
      - {key: {{ .key | quote }}, path: registry-password}
{{- end }}
{{- end }}
{{- end -}}
