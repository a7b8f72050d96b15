#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A hook of enroot, hence of pyxis: takes the agent's socket and the plugin into every container, read-only.
#   cp /usr/share/ncclscope/slurm/enroot/50-ncclscope.sh /etc/enroot/hooks.d/
# enroot runs it before the container starts, as the user, and starts none whose hook fails: this one never does.
# It mounts the socket's folder (a mounted socket is dead after the agent's next start), the plugin's folder, and the plugin
# where the image's loader finds it by its name, which is all that NCCL 2.27.3 takes. What is not there is left out.
# Variables reach the container under pyxis by themselves; `enroot start` in a job gets them here.
set +e
[ -n "${ENROOT_ROOTFS-}" ] && [ -n "${ENROOT_MOUNTS-}" ] && [ -n "${ENROOT_ENVIRON-}" ] || exit 0
plugin=${NCCLSCOPE_PLUGIN:-/usr/lib/ncclscope/libnccl-profiler-ncclscope.so}
name=${plugin##*/}
socket=${NCCLSCOPE_SOCKET:-/run/ncclscope/agent.sock}
case ${NCCL_PROFILER_PLUGIN-} in
  /*"/$name") plugin=$NCCL_PROFILER_PLUGIN ;;
esac
case ${NCCLSCOPE_DISABLE:-0} in
  0 | [Ff][Aa][Ll][Ss][Ee]) ;;
  *) exit 0 ;;
esac
case $plugin$socket in
  *[[:space:]]*) exit 0 ;;  # blanks separate the fields of a mount
esac

mount_in() {  # SOURCE TARGET dir|file [OPTION,]
  [ -e "$1" ] && printf '%s %s none x-create=%s,bind,ro,nosuid,nodev,%sprivate,nofail,silent\n' "$1" "$2" "$3" "${4-}" \
    >>"$ENROOT_MOUNTS"
}
mount_in "${socket%/*}" "${socket%/*}" dir noexec,
mount_in "${plugin%/*}" "${plugin%/*}" dir
for folder in /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/lib; do
  [ -d "$ENROOT_ROOTFS$folder" ] || continue
  # One in the image stays; an empty file is where it was mounted when this container ran before.
  [ -s "$ENROOT_ROOTFS$folder/$name" ] || mount_in "$plugin" "$folder/$name" file
  break
done

# What the container has of its own wins.
pass() {
  grep -q "^$1=" "$ENROOT_ENVIRON" || printf '%s=%s\n' "$1" "${!1}" >>"$ENROOT_ENVIRON"
}
case ${NCCL_PROFILER_PLUGIN-} in
  "$name" | "$plugin") pass NCCL_PROFILER_PLUGIN ;;
esac
for variable in $(compgen -e NCCLSCOPE_); do
  pass "$variable"
done
exit 0
