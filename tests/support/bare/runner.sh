#!/bin/sh
# Makes a folder with a Debian that has the programs of a CI runner which workflows use: runner.sh FOLDER MIRROR SUITE.
# Run as root.
set -eu
debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,git,jq,sudo "$3" "$1" "$2"
rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/archives/*.deb
