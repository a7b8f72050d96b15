#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prepares a node for training pods, from a container that has the node's directories mounted (deploy/helm) or by hand:
#   --sockets DIR --owner UID:GID   makes DIR the agent's: owned by it and written by nobody else (0755)
#   --api DIR --owner UID:GID       the same for api.sock, which belongs where no job can reach it
#   --archive DIR --owner UID:GID   makes DIR the agent's, for kept operations (0750)
#   --plugin DIR                    copies the plugin into DIR by atomic rename
#   --from FILE                     the plugin to copy (default /usr/lib/ncclscope/libnccl-profiler-ncclscope.so)
#   --remove DIR                    takes the plugin out of DIR; processes that have loaded it keep it
# A process that opens the plugin meets a whole file, old or new: a truncated one would kill the job with SIGBUS. A file
# that is the same already is left alone. Ends with 0 when everything is as asked, 1 and a reason on standard error otherwise.
set -eu
umask 022

name=libnccl-profiler-ncclscope.so
from=/usr/lib/ncclscope/$name
sockets='' api='' archive='' owner='' plugin='' remove='' staged='' probe=''

fail() {
  echo "install-plugin.sh: $*" >&2
  exit 1
}
# shellcheck disable=SC2317  # called by the trap
clean_up() {
  [ -z "$staged" ] || rm -f "$staged"
  [ -z "$probe" ] || rm -f "$probe"
}
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

while [ $# -gt 0 ]; do
  case $1 in
    --*=*) option=${1%%=*} value=${1#*=}; shift ;;
    --*) option=$1; [ $# -ge 2 ] || fail "$1 wants a value"; value=$2; shift 2 ;;
    *) fail "unknown argument '$1'; see the head of the script" ;;
  esac
  case $option in
    --sockets) sockets=$value ;;
    --api) api=$value ;;
    --archive) archive=$value ;;
    --owner) owner=$value ;;
    --plugin) plugin=$value ;;
    --from) from=$value ;;
    --remove) remove=$value ;;
    *) fail "unknown option '$option'; see the head of the script" ;;
  esac
done
[ -n "$sockets$api$archive$plugin$remove" ] || fail "nothing to do: give --sockets, --api, --archive, --plugin or --remove"

is_elf() { [ "$(head -c 4 "$1" | od -An -tx1 | tr -d ' \n')" = 7f454c46 ]; }

# give_to_agent DIR MODE
give_to_agent() {
  case $owner in
    *[!0-9:]* | '' | :* | *: | *:*:*) fail "--owner '$owner' is not UID:GID in numbers, such as 19464:19464" ;;
    *:*) ;;
    *) fail "--owner '$owner' is not UID:GID in numbers, such as 19464:19464" ;;
  esac
  [ ! -L "$1" ] || fail "$1 is a symbolic link: name the directory itself"
  mkdir -p "$1" || fail "cannot make $1"
  state=$(stat -c '%u:%g %a' "$1")
  [ "$state" != "$owner $2" ] || return 0
  # The mode first, while it is root's: changing another's needs a privilege more. 00: without set-group-ID, which volumes have.
  if [ "${state#* }" != "$2" ]; then
    { chown 0:0 "$1" && chmod "00$2" "$1"; } || fail "cannot set mode $2 of $1"
  fi
  chown "$owner" "$1" || fail "cannot give $1 to $owner (it is ${state% *}): root with CAP_CHOWN is needed"
  echo "install-plugin.sh: $1 belongs to $owner, mode $2 (was: $state)"
}

# The plugin's directory is root's (or whoever runs this), since processes of all users load what lies in it.
install_plugin() {
  [ -f "$from" ] || fail "no plugin at $from"
  is_elf "$from" || fail "$from is no ELF file"
  mkdir -p "$plugin" || fail "cannot make $plugin"
  owner_of_directory=$(stat -c %u "$plugin")
  [ "$owner_of_directory" = "$(id -u)" ] ||
    fail "$plugin belongs to uid $owner_of_directory: jobs would load what that user puts there; make it root's or name another directory"
  [ -z "$(find "$plugin" -prune -perm /022)" ] || fail "$plugin can be written by others than its owner: chmod 0755 it"

  probe=$plugin/.exec-probe.$$
  cp /bin/true "$probe" || fail "cannot write to $plugin"
  chmod 0755 "$probe"
  "$probe" 2>/dev/null ||
    fail "$plugin is on a file system mounted noexec, from which no library can be loaded: name another directory (paths.plugin)"
  rm -f "$probe"
  probe=''

  target=$plugin/$name
  [ ! -d "$target" ] || fail "$target is a directory; remove it"
  if [ -f "$target" ] && [ ! -L "$target" ] && cmp -s "$from" "$target" && [ "$(stat -c %a "$target")" = 755 ]; then
    echo "install-plugin.sh: $target is up to date"
    return 0
  fi
  # Left by one that was killed; not those of another that is at it.
  find "$plugin" -maxdepth 1 -name ".$name.*" -mmin +10 -delete
  staged=$plugin/.$name.$$
  cp "$from" "$staged" || fail "cannot copy the plugin to $plugin (is it full?)"
  chmod 0755 "$staged"
  sync "$staged"  # so that a crash of the node does not leave a name without its contents
  cmp -s "$from" "$staged" || fail "the copy in $plugin differs from $from"
  mv -f "$staged" "$target" || fail "cannot rename to $target"
  staged=''
  sync "$plugin"
  echo "install-plugin.sh: installed $target ($(sha256sum "$target" | cut -c1-12))"
}

[ -z "$sockets" ] || give_to_agent "$sockets" 755
[ -z "$api" ] || give_to_agent "$api" 755
[ -z "$archive" ] || give_to_agent "$archive" 750
[ -z "$plugin" ] || install_plugin
if [ -n "$remove" ]; then
  rm -f "$remove/$name" || fail "cannot remove $remove/$name"
  echo "install-plugin.sh: removed $remove/$name"
fi
