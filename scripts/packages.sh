# Installs Debian packages for the other scripts: `. scripts/packages.sh`, then `apt_install NAME...`.

apt_install() {
    command -v apt-get >/dev/null || { echo "please install: $*" >&2; return 1; }
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || { echo "please install (it needs root): $*" >&2; return 1; }
        as_root=(sudo)
    fi
    echo "installing $* with apt-get" >&2
    "${as_root[@]}" apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
