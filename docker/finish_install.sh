#!/bin/sh
# Finishes a build step that installs packages: compiles them and sets one timestamp for all files, so that equal
# packages make equal layers. Imports don't check the bytecode, because the sources in an image don't change. What runs
# a manifest locally or extends one is for a user's machine, so it stays without.
set -eu
python -m compileall -q --invalidation-mode unchecked-hash -x '/torchtally/(inject|local)/' "${VIRTUAL_ENV}/lib"
find /opt/torchtally -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
