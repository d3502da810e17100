#!/bin/sh
# Bring mosquitto from the distribution for the tests of MQTT. Without root it only says so: those tests then skip.
set -u
PATH="$PATH:/usr/sbin:/usr/local/sbin"
command -v mosquitto >/dev/null 2>&1 && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "no mosquitto found: the tests of MQTT will skip; to run them: sudo apt-get install mosquitto" >&2
  exit 0
fi
echo "installing mosquitto from the distribution for the tests of MQTT"
(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mosquitto) >/dev/null ||
  echo "mosquitto could not be installed: the tests of MQTT will skip" >&2
exit 0
