#!/bin/sh
# Makes a folder with a small Debian: base.sh FOLDER MIRROR. Run as root.
set -eu
debootstrap --variant=minbase forky "$1" "$2" /usr/share/debootstrap/scripts/sid
# A power cut costs no more than making it again, and nobody reads a manual in there.
echo force-unsafe-io >"$1/etc/dpkg/dpkg.cfg.d/unsafe-io"
printf 'path-exclude=/usr/share/%s/*\n' doc man locale info lintian >"$1/etc/dpkg/dpkg.cfg.d/lean"
# Its Release file may be past its date.
echo 'Acquire::Check-Valid-Until "false";' >"$1/etc/apt/apt.conf.d/valid"
rm -rf "$1"/var/lib/apt/lists/*
