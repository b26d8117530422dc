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
# 177 and 128: what a template leaves unused in one of its forms.
flags=(-O3 -std=c++17 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true -Xcompiler -ffp-contract=off -diag-suppress 177,128)
for arch in "$@"; do flags+=(-gencode "arch=${arch/sm_/compute_},code=$arch"); done
flags+=(-gencode arch=compute_80,code=compute_80)
version=$("$toolkit/bin/nvcc" --version | tail -1)

headers=("$here"/kernels/*.h "$here"/kernels/*.cuh "$here"/fake/*.h "$here"/../engine/canon/*.h)
# A fatbin's stamp is what it is made from, read before it is made: times would miss a header that changed meanwhile.
stamp() { echo "$version ${flags[*]} $(cat "$1" "${headers[@]}" | sha256sum)"; }
compile() { # source, fatbin, stamp
	"$toolkit/bin/nvcc" -fatbin "${flags[@]}" "$1" -o "$2.new"
	mv "$2.new" "$2"
	echo "$3" >"$2.for"
}
jobs=()
for source in "$here"/kernels/*.cu; do
	fatbin=${source%.cu}.fatbin
	made=$(stamp "$source")
	if [ -e "$fatbin" ] && [ "$(cat "$fatbin.for" 2>/dev/null)" = "$made" ]; then continue; fi
	while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do sleep 0.1; done
	echo "nvcc $(basename "$source")"
	compile "$source" "$fatbin" "$made" &
	jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job"; done
