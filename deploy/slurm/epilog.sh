#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SLURM's Epilog (or a line of yours): tells the node's agent that the job has ended here.
#   slurm.conf:  Epilog=/usr/share/ncclscope/slurm/epilog.sh
# It never fails and, whatever the program does, lasts five seconds at most: an epilog that fails or hangs drains the node.
program=${NCCLSCOPE_PROGRAM:-/usr/bin/ncclscope}
agent=${NCCLSCOPE_API_SOCKET:-/run/ncclscope/api.sock}
limit=
command -v timeout >/dev/null 2>&1 && limit='timeout -k 1 4'
$limit "$program" job end --agent "$agent" --timeout 2 </dev/null || :
exit 0
