#!/usr/bin/env bash
# Runs the conformance suite on this machine's device under compute-sanitizer: usage sanitize.sh TOOLKIT OUT ARCH..., as build.sh.
# Takes some minutes; needs a device and compute-sanitizer (part of the toolkit). TOOLS: which of its tools. synccheck is not among
# them: it refuses barriers beyond the number that it tracks and then ends kernels, and with more it wants more memory than there is.
#
# Driver calls that fail are not reported: a kernel is looked for in one module after the other. Kernels whose warps hand over
# through barriers are compiled anew with COVEY_EACH_LANE_ARRIVES (kernels/ptx.cuh), which racecheck needs to see the order.
set -euo pipefail
case "$1" in /*) toolkit=$1 ;; *) toolkit=$PWD/$1 ;; esac
case "$2" in /*) out=$2 ;; *) out=$PWD/$2 ;; esac
cd "$(dirname "$0")"
mkdir -p "$out/sanitize"
mapfile -t rings < <(grep -l warp_arrive kernels/*.cu)
FATBINS=$out/sanitize DEFINES="-DCOVEY_EACH_LANE_ARRIVES -lineinfo" SOURCES=${rings[*]} ./build.sh "$toolkit" "$out" "${@:3}"
pairs=$(for ring in "${rings[@]}"; do printf ',"%s":"%s"' "$PWD/${ring%.cu}.fatbin" "$out/sanitize/$(basename "$ring" .cu).fatbin"; done)
echo "{\"Replace\":{${pairs#,}}}" >"$out/sanitize/overlay.json"
go test -overlay "$out/sanitize/overlay.json" -c -o "$out/sanitize/cuda.test" .
for tool in ${TOOLS:-memcheck racecheck initcheck}; do
	echo "== $tool"
	options=()
	if [ "$tool" = racecheck ]; then options=(--num-cuda-barriers 65536); fi # some 220 a block of a one-row kernel, on every multiprocessor
	COVEY_TEST_DEVICE=1 compute-sanitizer --tool "$tool" "${options[@]}" --report-api-errors no --error-exitcode 9 "$out/sanitize/cuda.test" -test.run 'Equal.*CPU' -test.skip Models -test.short
done
