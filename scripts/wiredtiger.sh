#!/usr/bin/env bash
# Makes a Python that has WiredTiger, for tests and benchmarks. Usage: wiredtiger.sh DIRECTORY
#
# DIRECTORY/bin/mongod is that Python: under the name of MongoDB's server, by whose path the rules `mongodb` know its threads. Nothing
# is done if it is there already. WiredTiger is compiled (GPL; it is a program of its own, and nothing of Forebay is linked with it);
# that needs gcc and the headers of the Python in $PYTHON (python3). All else comes from PyPI.
set -euo pipefail

VERSION=11.3.1
directory=${1:?usage: wiredtiger.sh DIRECTORY}
python=${PYTHON:-python3}

works() { [[ $("$directory/bin/mongod" -c 'import wiredtiger; print(wiredtiger.wiredtiger_version()[0])' 2>/dev/null) == *" $VERSION:"* ]]; }

# Another one may be at it.
mkdir -p "$(dirname "$directory")"
exec 9>"$directory.lock"
flock 9
if works; then
    exit 0
fi
if [[ -n $(ls -A "$directory" 2>/dev/null) && ! -e $directory/pyvenv.cfg ]]; then
    echo "wiredtiger.sh: $directory is not one of its own: not touched" >&2
    exit 1
fi
rm -rf "$directory"
"$python" -m venv --copies "$directory"
directory=$(realpath "$directory")
export PATH=$directory/bin:$PATH
pip install --quiet --disable-pip-version-check --no-input setuptools==75.8.0 wheel==0.45.1 swig==4.3.0 cmake==3.31.6 ninja==1.11.1.3
# Else it is a build for debugging.
export CMAKE_BUILD_TYPE=Release
pip install --quiet --disable-pip-version-check --no-input --no-build-isolation "wiredtiger==$VERSION"
cp "$directory/bin/python3" "$directory/bin/mongod"
works || { echo "wiredtiger.sh: WiredTiger $VERSION is built and does not work" >&2; exit 1; }
