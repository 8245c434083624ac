#!/bin/sh
# Compile pass.c with the system's C compiler, into build/pass beside this file.
set -eu
cd "$(dirname "$0")"
mkdir -p build
${CC:-cc} -O3 -march=native -funroll-loops -std=c11 -D_GNU_SOURCE -Wall -Wextra -o "build/pass.$$" pass.c
mv "build/pass.$$" build/pass   # whole or not at all, should two build at once
