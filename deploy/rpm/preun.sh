# SPDX-License-Identifier: Apache-2.0
# $1 = 0: removed, not upgraded.
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then
  systemctl disable --now ncclscope-agent.socket ncclscope-agent.service || :
fi
