# SPDX-License-Identifier: Apache-2.0
# $1: how many versions are installed afterwards; 1 = a new installation.
systemd-sysusers ncclscope.conf || :
systemd-tmpfiles --create ncclscope.conf || :
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || :
  if [ "$1" = 1 ]; then systemctl enable --now ncclscope-agent.socket ncclscope-agent.service || :; fi
fi
