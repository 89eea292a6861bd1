#!/bin/sh
# The Python of Spark's workers in a session of spark_jms.setup.spark_session: SPARK_JMS_WORKER_PYTHON, started without Spark's
# archives on PYTHONPATH. Spark puts pyspark.zip, py4j-*.zip and spark-core_*.jar before the installed PySpark, which has the
# same modules. Python keeps no bytecode of a ZIP: it would compile them in each process, in 0.6 s of CPU time.
path=
set -f
IFS=:
for entry in ${PYTHONPATH:-}; do
    case $entry in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip | */jars/spark-core_*.jar) ;;
    *) path=${path:+$path:}$entry ;;
    esac
done
unset IFS
PYTHONPATH=$path
export PYTHONPATH
exec "${SPARK_JMS_WORKER_PYTHON:-python3}" "$@"
