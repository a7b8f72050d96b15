#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SLURM's TaskProlog (or lines of yours): lets NCCL load the plugin in every task, unless the user has chosen a profiler.
#   slurm.conf:  TaskProlog=/usr/share/ncclscope/slurm/task_prolog.sh
# SLURM puts "export NAME=value" lines of its output into the task's environment. It runs as the job's user.
plugin=${NCCLSCOPE_PLUGIN:-/usr/lib/ncclscope/libnccl-profiler-ncclscope.so}
if [ -z "${NCCL_PROFILER_PLUGIN+set}" ] && [ -r "$plugin" ]; then
  echo "export NCCL_PROFILER_PLUGIN=$plugin"
fi
exit 0
