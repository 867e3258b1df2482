# shellcheck shell=sh
# What scripts that make bare Debian roots share; sourced by them.

# mirror_of SUITE: the mirror that apt-get of this machine uses for it, or else the one of this
# machine's own release.
mirror_of() {
  own=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  # shellcheck disable=SC2016  # the $(...) is apt-get's own
  targets=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null) || return 0
  for suite in "$1" "$own"; do
    found=$(echo "$targets" | sed -n "s/^$suite //p" | head -n 1)
    if [ -n "$found" ]; then echo "$found" && return 0; fi
  done
}

# What an administrator of this network would have set up in the root: name resolution, proxies,
# certificates, the Python index. Nothing that the project itself needs.
carry_network() {
  root=$1
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  apt-config dump | grep -E '^Acquire::(http|https|Check)' \
    >"$root/etc/apt/apt.conf.d/99network" || true
  if ls /usr/local/share/ca-certificates/*.crt >/dev/null 2>&1; then
    mkdir -p "$root/usr/local/share/ca-certificates"
    cp -L /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/"
  fi
  index=${PIP_INDEX_URL:-$(python3 -m pip config get global.index-url 2>/dev/null || true)}
  [ -z "$index" ] || printf '[global]\nindex-url = %s\n' "$index" >"$root/etc/pip.conf"
}
