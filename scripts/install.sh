#!/usr/bin/env bash
# Installs the release binary and what belongs to it. Usage: install.sh PREFIX (DESTDIR is honoured; FOREBAY is another binary)
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=${1:?usage: $0 PREFIX}
root=${DESTDIR:-}
forebay=${FOREBAY:-target/release/forebay}

install -D -m 755 "$forebay" "$root$prefix/bin/forebay"
mkdir -p "$root$prefix/share/man/man1"
"$forebay" man --out "$root$prefix/share/man/man1"
mkdir -p "$root$prefix/share/bash-completion/completions" "$root$prefix/share/zsh/site-functions" \
    "$root$prefix/share/fish/vendor_completions.d"
"$forebay" completions bash >"$root$prefix/share/bash-completion/completions/forebay"
"$forebay" completions zsh >"$root$prefix/share/zsh/site-functions/_forebay"
"$forebay" completions fish >"$root$prefix/share/fish/vendor_completions.d/forebay.fish"
install -D -m 644 crates/watch/hint/include/forebay.h "$root$prefix/include/forebay.h"
mkdir -p "$root$prefix/lib/pkgconfig"
version=$("$forebay" --version | cut -d' ' -f2)
sed "s|@PREFIX@|$prefix|; s|@VERSION@|$version|" packaging/forebay.pc.in >"$root$prefix/lib/pkgconfig/forebay.pc"
mkdir -p "$root$prefix/lib/systemd/system"
sed "s|@PREFIX@|$prefix|" packaging/forebay@.service >"$root$prefix/lib/systemd/system/forebay@.service"
echo "installed under $root$prefix; a volume is a file /etc/forebay/NAME.toml and: systemctl enable --now forebay@NAME"
