#!/bin/sh
# Installs Chromium from Debian's packages unless it is there.
set -eu
if command -v chromium >/dev/null; then
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core
