# SPDX-License-Identifier: Apache-2.0
# $1 > 0: this was an upgrade. Jobs stay connected over the restart.
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || :
  if [ "$1" -gt 0 ]; then systemctl try-restart ncclscope-agent.service || :; fi
fi
