#!/usr/bin/env bash
# Makes an S3 server for tests, beside Ceph's gateway: versitygw, which keeps objects as files. Usage: versitygw.sh DIRECTORY
#
# DIRECTORY/versitygw is that server (Apache-2.0, a program of its own). Go compiles it from its module; nothing is done if it is
# there already. It needs Go 1.21 or later.
set -euo pipefail

VERSION=v1.8.0
directory=${1:?usage: versitygw.sh DIRECTORY}

works() { [[ $(go version -m "$directory/versitygw" 2>/dev/null) == *"versity/versitygw"*"$VERSION"* ]]; }

command -v go >/dev/null || { echo "versitygw.sh: there is no go (Debian's package is golang-go)" >&2; exit 1; }
# Another one may be at it.
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
exec 9>"$directory/lock"
flock 9
if works; then
    exit 0
fi
# A Go that is too old for it fetches the one that it needs, where it is allowed to.
GOTOOLCHAIN=${GOTOOLCHAIN:-auto} GOBIN=$directory go install "github.com/versity/versitygw/cmd/versitygw@$VERSION"
works || { echo "versitygw.sh: versitygw $VERSION is built and does not work" >&2; exit 1; }
