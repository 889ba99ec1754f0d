#!/bin/sh
# Installs Prometheus and Alertmanager from Debian's packages unless they are there. Their services are not needed: the
# tests start processes of their own.
set -eu

has() {
  command -v "$1" >/dev/null
}

if has prometheus && has promtool && has amtool && { has prometheus-alertmanager || has alertmanager; }; then
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends prometheus prometheus-alertmanager
