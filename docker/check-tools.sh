#!/bin/sh
# Report the tools of a build from source: check-tools.sh CLANG TOOL…
#
# Each line has three fields, separated by tabs: `ok`, a tool and its version; or `no`, a tool and the reason. The exit
# status is 1 if a tool is missing. CLANG is the path of the host compiler, or a folder such as /usr/lib, whose newest
# llvm-*/bin/clang is reported. TOOL is a path, or a name on PATH. The tools below come in addition.
#
# Sources: Dockerfile.jax-manylinux_2_28-therock of ROCm/rocm-jax (clang, lld, patchelf, numactl-devel, and xxd from
# vim-common); genrules and repository rules of XLA at the commits in sources.toml (xxd, awk, sed, grep, find, realpath,
# bash, python3, ar, and -lnuma until jax 0.10.0); wheel builders of jax (clang++) and rocm-jax (which, patchelf, git).
set -u
failed=0
newline='
'

ok() { printf 'ok\t%s\t%s\n' "$1" "$2"; }
no() {
  printf 'no\t%s\t%s\n' "$1" "$2"
  failed=1
}

found() {
  case $1 in
    */*) [ -x "$1" ] && [ ! -d "$1" ] ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# check PROGRAM ARGUMENT…: the first line that the program prints is its version.
check() {
  if ! found "$1"; then
    no "$1" 'not found'
  elif ! printed=$("$@" 2>&1 </dev/null); then
    no "$1" "does not run: ${printed##*"$newline"}"
  elif [ -z "$printed" ]; then
    no "$1" 'prints no version'
  else
    ok "$1" "${printed%%"$newline"*}"
  fi
}

# compile TOOL VERSION INCLUDE ARGUMENT…: compile and link a C++ program; it is not run.
compile() {
  tool=$1 version=$2 include=$3
  shift 3
  # An empty PATH must not hide the reason.
  folder=$(PATH=$PATH:/usr/bin:/bin mktemp -d) || { no "$tool" 'there is no writable temporary folder'; return; }
  printf '#include <%s>\nint main() { return 0; }\n' "$include" >"$folder/probe.cc"
  if printed=$("$clangxx" -std=c++17 "$folder/probe.cc" -o "$folder/probe" "$@" 2>&1); then
    ok "$tool" "$version"
  else
    printed=${printed#*error: }
    no "$tool" "does not compile: ${printed%%"$newline"*}"
  fi
  PATH=$PATH:/usr/bin:/bin rm -rf "$folder"
}

clang=$1
shift
if [ -d "$clang" ]; then
  folder=$clang clang='' newest=0
  for path in "$folder"/llvm-*/bin/clang; do
    number=${path#"$folder"/llvm-}
    number=${number%/bin/clang}
    case $number in *[!0-9]*) continue ;; esac
    if [ -x "$path" ] && [ "$number" -gt "$newest" ]; then
      clang=$path newest=$number
    fi
  done
fi
clangxx=
if [ -z "$clang" ]; then
  no clang "no llvm-*/bin/clang in $folder"
  no clang++ "no llvm-*/bin/clang in $folder"
else
  check "$clang" --version
  # As jax's build.py: clang++-18 for clang-18, else the clang++ in the same folder.
  name=${clang##*/}
  clangxx=${clang%"$name"}clang++${name#clang}
  found "$clangxx" || clangxx=${clang%"$name"}clang++
  check "$clangxx" --version
fi
if [ -n "$clangxx" ] && found "$clangxx"; then
  compile 'C++ library and lld' 'of clang++' vector -fuse-ld=lld
  compile 'libnuma with headers' 'linked' numa.h -fuse-ld=lld -lnuma
else
  no 'libnuma with headers' 'not checked without clang++'
fi

for tool in bash python3 git patchelf sed grep find realpath ar "$@"; do check "$tool" --version; done
# gawk and mawk have this option in common.
check awk -W version
check xxd -v
# Debian's which has no option for its version.
if which sh >/dev/null 2>&1; then
  printed=$(which --version 2>/dev/null) || printed='unknown version'
  ok which "${printed%%"$newline"*}"
else
  no which 'not found'
fi
exit $failed
