#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SLURM's TaskProlog (or lines of yours): lets NCCL load the plugin in every task, unless the user has chosen a profiler or
# has switched ncclscope off (NCCLSCOPE_DISABLE). Not needed where the SPANK plugin is.
#   slurm.conf:  TaskProlog=/usr/share/ncclscope/slurm/task_prolog.sh
# SLURM puts "export NAME=value" lines of its output into the task's environment. It runs as the job's user and never fails.
# NCCL 2.27.3 takes no path in NCCL_PROFILER_PLUGIN and 2.23 to 2.25 no short name; the file's name, where the loader finds
# it, works with every release. Where the loader does not, or finds another file, the path has to do.
plugin=${NCCLSCOPE_PLUGIN:-/usr/lib/ncclscope/libnccl-profiler-ncclscope.so}
name=${plugin##*/}
[ -z "${NCCL_PROFILER_PLUGIN+set}" ] && [ -r "$plugin" ] || exit 0
case ${NCCLSCOPE_DISABLE:-0} in
  0 | [Ff][Aa][Ll][Ss][Ee]) ;;
  *) exit 0 ;;
esac

# Every file that the loader could find by the name: its cache comes before its own folders.
found=$(/sbin/ldconfig -p 2>/dev/null | sed -n "s|^[[:space:]]*$name (.*=> ||p")
if [ -z "$found" ]; then
  for folder in /lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu /lib64 /usr/lib64 /lib /usr/lib; do
    [ "$folder/$name" -ef "$plugin" ] && found=$folder/$name && break
  done
fi
value=${found:+$name}
for path in $found; do
  [ "$path" -ef "$plugin" ] || value=
done
echo "export NCCL_PROFILER_PLUGIN=${value:-$plugin}"
exit 0
