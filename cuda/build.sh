#!/usr/bin/env bash
# Builds what the cuda tag needs beside Go: usage build.sh TOOLKIT OUT ARCH...
# TOOLKIT has bin/nvcc and include/cuda.h. OUT gets libcuda.a; kernels become cuda/kernels/*.fatbin: machine code for every
# ARCH (sm_90a, ...), and PTX for compute_80, which drivers compile for any later device. Only what changed is compiled.
set -euo pipefail
toolkit=$1 out=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"

if [ ! "$out/libcuda.a" -nt "$here/libcuda/jumps.c" ] || [ ! "$out/libcuda.a" -nt "$here/libcuda/symbols.h" ]; then
	gcc -O2 -fPIC -c "$here/libcuda/jumps.c" -o "$out/jumps.o"
	rm -f "$out/libcuda.a"
	ar rcs "$out/libcuda.a" "$out/jumps.o"
fi

# The law of docs/numerics.md: no fusing that is not written, denormals kept, correctly rounded division and square root.
flags=(-O3 -std=c++17 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true -Xcompiler -ffp-contract=off)
for arch in "$@"; do flags+=(-gencode "arch=${arch/sm_/compute_},code=$arch"); done
flags+=(-gencode arch=compute_80,code=compute_80)
headers=$(ls -t "$here"/kernels/*.h "$here"/kernels/*.cuh "$here"/../engine/canon/{canon,engine,source,packed}.h 2>/dev/null | head -1)
for source in "$here"/kernels/*.cu; do
	fatbin=${source%.cu}.fatbin stamp="$* $(basename "$toolkit")"
	if [ "$fatbin" -nt "$source" ] && [ "$fatbin" -nt "$headers" ] && [ "$(cat "$fatbin.for" 2>/dev/null)" = "$stamp" ]; then continue; fi
	echo "nvcc $(basename "$source")"
	"$toolkit/bin/nvcc" -fatbin "${flags[@]}" "$source" -o "$fatbin.new"
	mv "$fatbin.new" "$fatbin"
	echo "$stamp" >"$fatbin.for"
done
