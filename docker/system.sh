#!/bin/sh
# A build step that changes the system: `system.sh packages NAME…` or `system.sh user`. All files that it writes get one
# time, and what tells of the moment goes, so that the same content makes the same layer.
set -eu
: "${SOURCE_DATE_EPOCH:?}"

# A file that is newer than this one was written by this step. On a file system of its own; its clock has to go on first.
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
    # Group 0 may write what uid 1000 may: platforms that give each namespace a uid of its own leave the group at 0.
    # The uid may be taken in the base (ubuntu:24.04 does), hence --non-unique.
    useradd --non-unique --uid 1000 --gid 0 --no-create-home --home-dir /cache torchtally
    install -d -o 1000 -g 0 -m 0775 /cache /data /output
    mkdir /opt/torchtally
    ;;
esac

# Emptied and not removed, as the removal of a file of a layer below has a time that nobody can set.
find /var/log /var/cache/ldconfig /var/cache/debconf/*-old /var/lib/dpkg/*-old /etc/*- -type f -exec truncate --size=0 {} +
find / -xdev -cnewer "$begun" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
