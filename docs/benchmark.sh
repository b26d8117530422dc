#!/usr/bin/env bash
# Measures this machine and prints the table of docs/benchmarks.md. Run it on a quiet machine, after `make build`:
#   docs/benchmark.sh            # everything but the cold build
#   docs/benchmark.sh --build    # also times a cold build (clears nothing but a private cache)
set -euo pipefail
cd "$(dirname "$0")/.."
covey=bin/covey
model=models/smollm2-moe-32x

# Three or four digits: more would be noise.
field() { grep -o "\"$2\":[^,}]*" <<<"$1" | head -1 | cut -d: -f2 | tr -d '"' | awk '{ printf "%.4g", $1 }'; }
row() { printf '| %s | %s | `%s` |\n' "$1" "$2" "$3"; }
seconds() { date +%s.%N; }
between() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", b - a }'; }

echo "Machine: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2- | xargs), $(nproc) cores; load average before: $(cut -d' ' -f1 /proc/loadavg). $($covey version | head -1)."
echo
echo "| what | figure | command |"
echo "|---|---|---|"

if [[ ${1:-} == --build ]]; then
	cache=$(mktemp -d)
	a=$(seconds); GOCACHE=$cache make build >/dev/null; b=$(seconds)
	rm -rf "$cache"
	row "cold build, modules at hand" "$(between "$a" "$b") s" "make build"
fi
row "binary" "$(stat -c %s $covey) bytes" "stat bin/covey"
row "client, raw / brotli" "$(stat -c %s web/static/app.wasm) / $(stat -c %s web/static/app.wasm.br) bytes" "make wasm"

for threads in 1 2; do
	out=$($covey bench decode --model $model --threads $threads --json | tail -1)
	row "decode, $threads threads" "$(field "$out" decode_tok_s) tok/s, $(field "$out" used_gb_s) GB/s of $(field "$out" read_gb_s) GB/s read" "covey bench decode --threads $threads"
	out=$($covey bench prefill --model $model --threads $threads --json | tail -1)
	row "prefill of 512 tokens, $threads threads" "$(field "$out" prefill_tok_s) tok/s" "covey bench prefill --threads $threads"
done

# Several people at once: pairs of one run, so that load hits both sides of each ratio.
out=$($covey bench serve --model $model --json | tail -1)
row "8 conversations at once / one" "$(field "$out" gain) times" "covey bench serve"
row "first token of a 22-token question while 4,000 tokens are read" "$(field "$out" first_ms) ms, $(field "$out" in_steps) steps' time" "covey bench serve"
row "same, beside a running answer" "$(field "${out#*question_beside_answer}" first_ms) ms, $(field "${out#*question_beside_answer}" in_steps) steps' time" "covey bench serve"
row "between two tokens of that answer, alone / meanwhile" "$(field "${out#*answer_alone}" median_ms) / $(field "${out#*answer_beside_reading}" median_ms) ms" "covey bench serve"

# A model beyond every cache, 1.36 GB: what decode reaches of the read probe.
big=$(mktemp -d)/olmoe
$covey bench make-model "$big" --shape olmoe --layers 4 --json >/dev/null
for threads in 1 2; do
	out=$($covey bench decode --model "$big" --threads $threads --prompt 64 --tokens 64 --json | tail -1)
	row "decode of OLMoE's shape, 4 layers, int4, $threads threads" "$(field "$out" decode_tok_s) tok/s, $(field "$out" used_gb_s) GB/s of $(field "$out" read_gb_s) GB/s read" "covey bench make-model, covey bench decode"
done
rm -rf "$(dirname "$big")"

# The peer, where LLAMA_BENCH names its binary and PEER_GGUF the same model, all matrices Q4_0.
if [[ -n ${LLAMA_BENCH:-} && -n ${PEER_GGUF:-} ]]; then
	for threads in 1 2; do
		out=$($covey bench peer --binary "$LLAMA_BENCH" --gguf "$PEER_GGUF" --model $model --threads $threads --json | tail -1)
		row "beside llama.cpp, $threads threads" "decode $(field "$out" decode_tok_s) and $(field "$out" peer_decode_tok_s), prefill $(field "$out" prefill_tok_s) and $(field "$out" peer_prefill_tok_s) tok/s" "covey bench peer --threads $threads"
	done
fi
out=$($covey run --model $model --prompt Hello --temperature 0 --max-tokens 16 --json | tail -1)
row "first token of a 22-token prompt" "$(field "$out" ttft_ms) ms" "covey run --prompt Hello --json"

# From the start of the process to ready, and what it holds then.
data=$(mktemp -d)
a=$(seconds)
$covey serve --addr 127.0.0.1:0 --data "$data" --model $model >"$data/out" 2>"$data/log" &
pid=$!
trap 'kill $pid 2>/dev/null || true; rm -rf "$data"' EXIT
address=
for _ in $(seq 200); do
	address=$(grep -o '127.0.0.1:[0-9]*' "$data/out" | head -1 || true)
	[[ -n $address ]] && break
	sleep 0.01
done
b=$(seconds)
for _ in $(seq 600); do
	curl -fs "http://$address/readyz" >/dev/null && break
	sleep 0.01
done
c=$(seconds)
row "start to listening / to ready" "$(between "$a" "$b") s / $(between "$a" "$c") s" "covey serve, then /readyz"
row "memory when ready" "$(($(awk '/VmRSS/ { print $2 }' /proc/$pid/status) / 1024)) MiB resident" "VmRSS of covey serve"
cpu() { awk '{ print $14 + $15 }' /proc/$pid/stat; }
a=$(cpu); sleep 60; b=$(cpu)
row "idle daemon over 60 s" "$(awk -v a="$a" -v b="$b" 'BEGIN { printf "%.2f", (b - a) / 60 }') % of one core" "utime + stime of covey serve"
kill $pid && wait $pid || true

out=$($covey atlas run --model $model --out "$data/atlas.json" --json | tail -1)
row "probe batch, built-in set, statistics included" "$(field "$out" seconds) s, $(field "$out" specialists) specialists of $(field "$out" experts) experts" "covey atlas run --json"
a=$(seconds); $covey atlas ablate "$data/atlas.json" --model $model --labels 14 --no-groups --out "$data/ablated.json" >/dev/null; b=$(seconds)
row "removal of 14 labels, 3,696 readings" "$(between "$a" "$b") s" "covey atlas ablate FILE --labels 14 --no-groups"
out=$($covey atlas selftest --json | tail -1)
row "planted truth: recall at lift 4, false labels, coverage" "$(field "$out" recall_lift4), $(field "$out" false_label_rate), $(field "$out" coverage)" "covey atlas selftest --json"
