#!/bin/sh
# Makes a folder with a Debian that has Chromium: prepare.sh FOLDER. Run as root.
set -eu
chroot "$1" apt-get -q update
DEBIAN_FRONTEND=noninteractive chroot "$1" apt-get -q -y --no-install-recommends install chromium fonts-dejavu-core
rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/archives/*.deb
