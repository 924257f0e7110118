#!/bin/sh
# Starts what Spark on Kubernetes asks of a container: `driver ARGUMENTS` or `executor`, with the SPARK_ variables that
# it sets. Any other words are a command, as `spark-submit ...`.
set -eu

case "${1:-}" in
driver)
    shift
    set -- spark-submit --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
    ;;
executor)
    set -- "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY"
    number=0
    while option="SPARK_JAVA_OPT_$number" && eval "[ -n \"\${$option+set}\" ]"; do
        eval "set -- \"\$@\" \"\${$option}\""
        number=$((number + 1))
    done
    classes="${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*:${SPARK_EXTRA_CLASSPATH:-}"
    set -- java "$@" -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$classes:$PWD" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
esac
exec tini -s -- "$@"
