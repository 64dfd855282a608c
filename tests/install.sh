#!/usr/bin/env bash
# What `make install` puts under a prefix works there: a C program finds the header by pkg-config, and the rest is in its place.
source "$(dirname "$0")/harness.sh"

need gcc pkg-config
DESTDIR=$DIR/root FOREBAY=$FOREBAY "$ROOT/scripts/install.sh" /opt/forebay >/dev/null
PREFIX=$DIR/root/opt/forebay
version=$("$PREFIX/bin/forebay" --version | cut -d' ' -f2)

export PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$DIR/root
[[ $(pkg-config --modversion forebay) == "$version" ]] || fail "pkg-config says another version than $version"
cat >hint.c <<'END_OF_C'
#include <forebay.h>

int main(void)
{
	forebay_critical_end(forebay_critical_begin());
	return 0;
}
END_OF_C
read -ra cflags < <(pkg-config --cflags forebay)
gcc -Wall -Werror "${cflags[@]}" hint.c -o hint || fail "a program does not build with $(pkg-config --cflags forebay)"
./hint || fail "the program does not run"

for file in share/man/man1/forebay.1 share/man/man1/forebay-serve.1 share/bash-completion/completions/forebay \
    share/zsh/site-functions/_forebay share/fish/vendor_completions.d/forebay.fish; do
    [[ -s $PREFIX/$file ]] || fail "$file is not installed"
done
unit=$PREFIX/lib/systemd/system/forebay@.service
grep -q '^ExecStart=/opt/forebay/bin/forebay ' "$unit" || fail "the unit does not start the installed program: $(grep ExecStart "$unit")"
pass "a program is built by pkg-config, and pages, completions and the unit are in their places"
