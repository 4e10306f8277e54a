#!/bin/sh
# Ends a build step that installs packages: compiles them, and gives all files one time, so that the same packages make
# the same layer. What is compiled is held against nothing when it is imported, as sources do not change in an image.
set -eu
python -m compileall -q --invalidation-mode unchecked-hash "${VIRTUAL_ENV}/lib"
find /opt/torchtally -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
