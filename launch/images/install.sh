#!/bin/sh
# What both recipes install: `install.sh libraries DEVICE`, then `install.sh package EXTRAS`. Needs root, Debian and pip.
# /src holds the parts of the repository that the recipes copy. The versions are those that `make setup` installs.
set -eu
pip="pip install --no-cache-dir --disable-pip-version-check --root-user-action ignore --constraint /src/.ci/constraints.txt"

case "$1" in
libraries)
    # Of the two indexes pip takes torch of the second, as 2.13.0+cpu is newer than 2.13.0. PyPI's brings CUDA's libraries.
    case "$2" in
    cpu) index="--extra-index-url https://download.pytorch.org/whl/cpu" ;;
    cuda) index="" ;;
    *) echo "DEVICE=$2: it should be cpu or cuda" >&2 && exit 2 ;;
    esac
    # Triton and DeepSpeed compile small parts when they are first used; NCCL reaches InfiniBand through libibverbs.
    apt-get update
    apt-get install --yes --no-install-recommends g++ libibverbs1 ibverbs-providers
    rm -rf /var/lib/apt/lists/*
    # torch first and alone, so that no other package pulls in a different build of it.
    $pip $index torch
    $pip setuptools
    ;;
package)
    $pip --no-build-isolation "/src[$2]"
    ;;
*)
    echo "install.sh libraries DEVICE, or install.sh package EXTRAS" >&2 && exit 2
    ;;
esac
