{{/* Labels of an object. Of: root, component. */}}
{{- define "yardmaster.labels" -}}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/name: yardmaster
app.kubernetes.io/part-of: yardmaster
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What selects the pods of one workload. Of: component; `extra`, a map of labels. */}}
{{- define "yardmaster.selector" -}}
app.kubernetes.io/component: {{ .component }}
{{- with .extra }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of pods. Of: as of the selector. */}}
{{- define "yardmaster.podLabels" -}}
{{ include "yardmaster.selector" . }}
app.kubernetes.io/name: yardmaster
app.kubernetes.io/part-of: yardmaster
{{- end }}

{{/* What every pod has. Of: root, component, seconds (the grace period). */}}
{{- define "yardmaster.pod" -}}
serviceAccountName: {{ .component }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .seconds }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{/* Where the pods of a service run. Of: root. */}}
{{- define "yardmaster.nodes" -}}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Pods of one workload on several nodes. Of: component, extra; `unsatisfiable`. */}}
{{- define "yardmaster.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: {{ .unsatisfiable | default "ScheduleAnyway" }}
    labelSelector:
      matchLabels: {{ include "yardmaster.selector" . | nindent 8 }}
{{- end }}

{{/* The security context of every container. */}}
{{- define "yardmaster.hardened" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* An image of Yardmaster. Of: root, image. */}}
{{- define "yardmaster.image" -}}
{{ .root.Values.image.registry }}{{ .image }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/*
A hung process is restarted. A process that waits for Kafka, for Redis or to become leader reports that it
is alive.
*/}}
{{- define "yardmaster.probes" -}}
startupProbe:
  httpGet: { path: /livez, port: health }
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: { path: /livez, port: health }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /readyz, port: health }
  periodSeconds: 5
  timeoutSeconds: 3
{{- end }}

{{/* The same, of a server that only accepts connections. Of: port, failures (of the startup probe). */}}
{{- define "yardmaster.tcpProbes" -}}
startupProbe:
  tcpSocket: { port: {{ .port }} }
  periodSeconds: 2
  failureThreshold: {{ .failures }}
livenessProbe:
  tcpSocket: { port: {{ .port }} }
  periodSeconds: 10
  failureThreshold: 6
readinessProbe:
  tcpSocket: { port: {{ .port }} }
  periodSeconds: 5
{{- end }}

{{/* A map of settings as environment variables. */}}
{{- define "yardmaster.settings" -}}
{{- range $name, $value := . }}
- { name: {{ $name }}, value: {{ $value | quote }} }
{{- end }}
{{- end }}

{{/* The cell that a gateway or an agent serves. Of: root, cell. */}}
{{- define "yardmaster.cell" -}}
{{- $served := .cell }}
{{- if not (has $served .root.Values.cells) }}
{{- fail (printf "the cell %s of an agent group is not in `cells`: add it there" $served) }}
{{- end }}
{{- range $number, $cell := .root.Values.cells }}
{{- if eq $cell $served }}
- { name: YARD_CELL, value: {{ $cell | quote }} }
- { name: YARD_PARTITION, value: {{ $number | quote }} }
{{- end }}
{{- end }}
{{- end }}

{{/* The user of a process at the chart's brokers; brokers of the site have one for all. Of: root, user. */}}
{{- define "yardmaster.logEnv" -}}
{{- if .root.Values.kafka.deploy }}
- { name: YARD_KAFKA__SASL_USERNAME, value: {{ .user }} }
{{- end }}
{{- end }}

{{/* Credentials for the brokers, as volumes of a process on the log. Of: root; user, "" for all users. */}}
{{- define "yardmaster.logVolumes" -}}
{{- if .root.Values.kafka.deploy }}
- name: kafka-password
  secret:
    secretName: {{ .root.Values.kafka.usersSecret }}
    defaultMode: 0440
    {{- with .user }}
    items: [{ key: {{ . }}, path: password }]
    {{- end }}
{{- else }}
{{- with .root.Values.kafka.external }}
{{- if .passwordSecret.name }}
- name: kafka-password
  secret:
    secretName: {{ .passwordSecret.name }}
    defaultMode: 0440
    items: [{ key: {{ .passwordSecret.key }}, path: password }]
{{- end }}
{{- if .caSecret.name }}
- name: kafka-ca
  secret:
    secretName: {{ .caSecret.name }}
    defaultMode: 0440
    items: [{ key: {{ .caSecret.key }}, path: ca.crt }]
{{- end }}
{{- if .certificateSecret.name }}
- name: kafka-certificate
  secret: { secretName: {{ .certificateSecret.name }}, defaultMode: 0440 }
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "yardmaster.logMounts" -}}
{{- range fromYamlArray (include "yardmaster.logVolumes" .) }}
- { name: {{ .name }}, mountPath: /etc/yardmaster/{{ .name }}, readOnly: true }
{{- end }}
{{- end }}

{{/* How gateways and views reach Redis: variables, mounts, volumes. Of: root, user. */}}
{{- define "yardmaster.redisEnv" -}}
{{- $deployed := .root.Values.redis.deploy }}
{{- $external := .root.Values.redis.external }}
- { name: YARD_REDIS__URL, value: {{ $deployed | ternary "redis://redis:6379/0" $external.url | quote }} }
{{- with $deployed | ternary .user $external.username }}
- { name: YARD_REDIS__USERNAME, value: {{ . | quote }} }
{{- end }}
{{- if or $deployed $external.passwordSecret.name }}
- { name: YARD_REDIS__PASSWORD_FILE, value: /etc/yardmaster/redis/password }
{{- end }}
{{- if not $deployed }}
{{- with $external }}
{{- if .caSecret.name }}
- { name: YARD_REDIS__SSL_CAFILE, value: /etc/yardmaster/redis-ca/ca.crt }
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "yardmaster.redisMounts" -}}
{{- range fromYamlArray (include "yardmaster.redisVolumes" .) }}
- { name: {{ .name }}, mountPath: /etc/yardmaster/{{ .name | replace "redis-password" "redis" }}, readOnly: true }
{{- end }}
{{- end }}

{{- define "yardmaster.redisVolumes" -}}
{{- $own := dict "name" .root.Values.redis.usersSecret "key" .user }}
{{- with .root.Values.redis.deploy | ternary $own .root.Values.redis.external.passwordSecret }}
{{- if .name }}
- name: redis-password
  secret:
    secretName: {{ .name }}
    defaultMode: 0440
    items: [{ key: {{ .key }}, path: password }]
{{- end }}
{{- end }}
{{- if not .root.Values.redis.deploy }}
{{- with .root.Values.redis.external.caSecret }}
{{- if .name }}
- name: redis-ca
  secret:
    secretName: {{ .name }}
    defaultMode: 0440
    items: [{ key: {{ .key }}, path: ca.crt }]
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Pods restart when the settings that all processes share have changed. */}}
{{- define "yardmaster.checksum" -}}
checksum/settings: {{ include (print .Template.BasePath "/settings.yaml") . | sha256sum }}
{{- end }}

{{/* The account of a workload's pods: without a token. Of: root, component. */}}
{{- define "yardmaster.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .component }}
  labels: {{ include "yardmaster.labels" . | nindent 4 }}
automountServiceAccountToken: false
{{- end }}

{{/* At most one pod of a workload is evicted at a time. Of: root, component, name; `extra`. */}}
{{- define "yardmaster.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels: {{ include "yardmaster.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{ include "yardmaster.selector" . | nindent 6 }}
{{- end }}
