#!/bin/sh
# Tries the repository's commands in a bare Debian root: git, sh and apt, nothing else.
#
#   tests/fresh/run.sh [MODE...]           default: online offline
#     online   ./dev demo && ./dev test
#     offline  the same with the Python registry out of reach, then the demo without any network
#     sudo     ./dev demo as an ordinary user who may use sudo
#     ci       .ci/run
#
# Needs root, debootstrap and about 6 GB. The clone is of HEAD: commit first. The Debian mirror,
# proxies, extra certificates and the Python index are those of this machine. The roots live in
# build/fresh (or $ACCRT_FRESH_DIR) and are removed after a success; logs stay. For another system
# set ACCRT_FRESH_SUITE, ACCRT_FRESH_MIRROR and ACCRT_FRESH_OPTIONS (of debootstrap), for instance
# noble, the address of an Ubuntu mirror, and "--components=main,universe --keyring=...".
set -eu

REPO=$(cd "$(dirname "$0")/../.." && pwd)
WORK=${ACCRT_FRESH_DIR:-$REPO/build/fresh}
SUITE=${ACCRT_FRESH_SUITE:-bookworm}
die() { echo "fresh: $*" >&2; exit 1; }

. "$REPO/tests/fresh/network.sh"

make_base() {
  [ -e "$WORK/base/.complete" ] && return 0
  url=${ACCRT_FRESH_MIRROR:-$(mirror_of "$SUITE")}
  [ -n "$url" ] || die "no mirror for $SUITE among this machine's apt sources; set ACCRT_FRESH_MIRROR"
  echo "== making a bare $SUITE root"
  rm -rf "$WORK/base"
  # Newer Ubuntu releases have no recipe in an older debootstrap; all share this one.
  recipe=
  [ -e "/usr/share/debootstrap/scripts/$SUITE" ] || recipe=/usr/share/debootstrap/scripts/gutsy
  # shellcheck disable=SC2086  # options and an optional argument
  debootstrap --variant=minbase --include=git ${ACCRT_FRESH_OPTIONS:-} "$SUITE" "$WORK/base" \
    "$url" $recipe >"$WORK/debootstrap.log" 2>&1 || die "debootstrap failed; see $WORK/debootstrap.log"
  : >"$WORK/base/.complete"
}

# Prints the commands of a mode, run inside the root by sh -eu.
commands() {
  clone='git clone -q /srv/accrt.git accrt; cd accrt;'
  unreachable='export PIP_CONFIG_FILE=/dev/null PIP_INDEX_URL=http://127.0.0.1:9/;'
  case $1 in
    online) echo "$clone ./dev demo; timed demo; ./dev test; timed test" ;;
    offline) echo "$clone $unreachable ./dev demo; timed demo; ./dev test; timed test
      unshare -n ./dev demo; timed 'demo without network'
      ! .venv/bin/python -m pip download -q --retries 0 -d /tmp/x tokenizers 2>/dev/null" ;;
    sudo) echo "apt-get -qq update; apt-get -qq install -y --no-install-recommends sudo >/dev/null
      useradd -m one; chown -R one /srv/accrt.git; echo 'one ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/one
      su one -c 'set -eu; cd; $clone ./dev demo'; timed demo" ;;
    ci) echo "$clone .ci/run; timed ci" ;;
    *) die "no mode '$1'; there are: online offline sudo ci" ;;
  esac
}

# Runs one mode in a copy of the base root, in its own mount and process namespace, so that nothing
# stays mounted or running whatever happens inside.
# shellcheck disable=SC2016  # what is quoted here is expanded inside the root
try_mode() {
  root=$WORK/$1
  rm -rf "$root"
  cp -a "$WORK/base" "$root"
  carry_network "$root"
  git clone -q --bare "$REPO" "$root/srv/accrt.git"
  {
    echo 'set -eu; cd /root; start=$(date +%s)'
    echo 'timed() { echo "== $1: passed after $(($(date +%s) - start)) s"; }'
    commands "$1"
  } >"$root/srv/try.sh"
  unshare --mount --pid --fork --propagation private sh -eu -c '
    mount -t proc proc "$1/proc"
    mount -t sysfs -o ro sysfs "$1/sys"
    mount --rbind /dev "$1/dev"
    exec chroot "$1" /usr/bin/env -i HOME=/root USER=root LANG=C.UTF-8 \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -eu /srv/try.sh
  ' sh "$root" >"$WORK/$1.log" 2>&1
}

[ "$(id -u)" = 0 ] || die "needs root (chroot and mounts)"
command -v debootstrap >/dev/null || die "needs debootstrap (apt-get install debootstrap)"
[ $# -gt 0 ] || set -- online offline
for mode in "$@"; do commands "$mode" >/dev/null; done
mkdir -p "$WORK"
make_base
for mode in "$@"; do
  echo "== $mode: $(git -C "$REPO" log -1 --format='%h %s')"
  if ! try_mode "$mode"; then
    tail -n 60 "$WORK/$mode.log"
    die "$mode failed; the root is kept in $WORK/$mode, the log is $WORK/$mode.log"
  fi
  grep '^== ' "$WORK/$mode.log"
  rm -rf "${WORK:?}/$mode"
done
echo "== passed: $*"
