#!/usr/bin/env bash
# Makes the virtual environment: venv.sh PYTHON DIRECTORY LOG. On Debian and Ubuntu `python3 -m venv` is a package of its
# own; it is installed where that is possible (root), otherwise the command to run is printed.
set -euo pipefail
python=$1 venv=$2

if [ "${3:-}" ]; then
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || {
        echo "spark-jms needs Python 3.10 or newer as '$python' (found: $("$python" --version 2>&1 || echo none))." >&2
        echo "Run: make PYTHON=/path/to/python3.11 setup" >&2
        exit 1
    }
    exec "$python" -I "$(dirname "$0")/step.py" "Virtual environment $venv ($("$python" --version))" "$3" -- \
        bash "$0" "$python" "$venv"
fi

[ -e "$venv" ] && existed=yes || existed=
"$python" -m venv "$venv" && exit 0

[ -n "$existed" ] || rm -rf "$venv"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv
    exec "$python" -m venv "$venv"
fi
"$python" -m venv "$venv" || {
    echo "'$python -m venv' failed. On Debian or Ubuntu run: sudo apt-get install -y python3-venv"
    exit 1
}
