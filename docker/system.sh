#!/bin/sh
# A build step that changes the system: `system.sh packages NAME…` or `system.sh user`. It sets one timestamp for all
# files that it writes, and empties logs and caches, so that equal content makes equal layers.
set -eu
: "${SOURCE_DATE_EPOCH:?}"

# Files newer than this one belong to this step. The loop waits until the file system's clock advances.
begun=/dev/shm/begun
touch "$begun"
until [ "$begun.next" -nt "$begun" ]; do touch "$begun.next"; done

case $1 in
packages)
    shift
    if [ $# -gt 0 ]; then
        apt-get update
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
    fi
    ;;
user)
    # Group 0 has the permissions of uid 1000, because platforms that assign uids per namespace keep group 0.
    # --non-unique, because the base image can already have this uid (ubuntu:24.04 does).
    useradd --non-unique --uid 1000 --gid 0 --no-create-home --home-dir /cache torchtally
    install -d -o 1000 -g 0 -m 0775 /cache /data /output
    mkdir /opt/torchtally
    ;;
esac

# Truncate instead of delete: deleting a file of a lower layer records a timestamp that cannot be set.
find /var/log /var/cache/ldconfig /var/cache/debconf/*-old /var/lib/dpkg/*-old /etc/*- -type f -exec truncate --size=0 {} +
find / -xdev -cnewer "$begun" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
