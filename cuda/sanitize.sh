#!/usr/bin/env bash
# Runs the conformance suite on this machine's device under compute-sanitizer, once a tool. Takes minutes; needs a device and
# compute-sanitizer (part of the toolkit). Driver calls that fail are not reported: a kernel is looked for in one module after
# the other.
set -euo pipefail
cd "$(dirname "$0")"
test=$(mktemp)
trap 'rm -f "$test"' EXIT
go test -c -o "$test" .
for tool in memcheck racecheck initcheck synccheck; do
	echo "== $tool"
	COVEY_TEST_DEVICE=1 compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 "$test" -test.run 'Equal.*CPU' -test.short
done
