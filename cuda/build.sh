#!/usr/bin/env bash
# Builds what the cuda tag needs beside Go: usage build.sh TOOLKIT OUT ARCH...
# TOOLKIT has bin/nvcc and include/cuda.h. OUT gets libcuda.a; kernels become cuda/kernels/*.fatbin: machine code for every
# ARCH (sm_90a, ...), and PTX for compute_80, which drivers compile for any later device. Only what changed is compiled.
# FATBINS: another folder for them. SOURCES: some of the kernels' sources only. DEFINES: further flags of nvcc.
set -euo pipefail
toolkit=$1 out=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
fatbins=${FATBINS:-$here/kernels}
mkdir -p "$out" "$fatbins"

if [ ! "$out/libcuda.a" -nt "$here/libcuda/jumps.c" ] || [ ! "$out/libcuda.a" -nt "$here/libcuda/symbols.h" ]; then
	gcc -O2 -fPIC -c "$here/libcuda/jumps.c" -o "$out/jumps.o"
	rm -f "$out/libcuda.a"
	ar rcs "$out/libcuda.a" "$out/jumps.o"
fi

# The law of docs/numerics.md: no fusing that is not written, denormals kept, correctly rounded division and square root.
# 177 and 128: what a template leaves unused in one of its forms.
flags=(-O3 -std=c++17 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true -Xcompiler -ffp-contract=off -diag-suppress 177,128)
read -ra defines <<<"${DEFINES:-}"
flags+=("${defines[@]}")
# What a source is compiled for. Kernels of *_row.cu and *_few.cu live from bulk copies, which devices before sm_90 and PTX for
# them do not have: there device.go finds no such kernels and leaves their families out.
targets() { # source, ARCH...
	local source=$1 arch number
	shift
	for arch in "$@"; do
		number=${arch//[!0-9]/}
		if [[ $source =~ _(row|few)\.cu$ ]] && [ "$number" -lt 90 ]; then continue; fi
		echo "-gencode arch=${arch/sm_/compute_},code=$arch"
	done
	[[ $source =~ _(row|few)\.cu$ ]] || echo "-gencode arch=compute_80,code=compute_80"
}
version=$("$toolkit/bin/nvcc" --version | tail -1)

headers=("$here"/kernels/*.h "$here"/kernels/*.cuh "$here"/fake/*.h "$here"/../engine/canon/*.h)
# A fatbin's stamp is what it is made from, read before it is made: times would miss a header that changed meanwhile.
stamp() { echo "$version ${flags[*]} $2 $(cat "$1" "${headers[@]}" | sha256sum)"; }
compile() { # source, targets, fatbin, stamp
	"$toolkit/bin/nvcc" -fatbin "${flags[@]}" $2 "$1" -o "$3.new"
	mv "$3.new" "$3"
	echo "$4" >"$3.for"
}
for fatbin in "$fatbins"/*.fatbin; do # of sources that are gone: the program would load their kernels too
	[ -e "$here/kernels/$(basename "$fatbin" .fatbin).cu" ] || rm -f "$fatbin" "$fatbin.for"
done
jobs=()
for source in ${SOURCES:-"$here"/kernels/*.cu}; do
	fatbin=$fatbins/$(basename "$source" .cu).fatbin
	for_what=$(targets "$source" "$@" | paste -sd ' ')
	if [ -z "$for_what" ]; then
		rm -f "$fatbin" "$fatbin.for"
		continue
	fi
	made=$(stamp "$source" "$for_what")
	if [ -e "$fatbin" ] && [ "$(cat "$fatbin.for" 2>/dev/null)" = "$made" ]; then continue; fi
	while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do sleep 0.1; done
	echo "nvcc $(basename "$source")"
	compile "$source" "$for_what" "$fatbin" "$made" &
	jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job"; done
