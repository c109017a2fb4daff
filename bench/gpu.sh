#!/usr/bin/env bash
# Measures and tests on a GPU, in calls of under ten minutes that are useful alone: docs/internals/gpu.md
#
#     bench/gpu.sh kernels|steps|whole|exact|tune|all|STEP ...
#     bench/gpu.sh --list        the steps, and their limits in seconds
#
# Environment: OUT, the folder of log.txt, results.jsonl and configurations.json (./gpu-results);
# PYTHON (python3); WHEELS, a folder of wheels to use; SMALL=1: in tiny shapes, on a CPU; LIMIT,
# seconds that no step may exceed; COMMIT, where the tree has no .git. The exit status is 1 if a step
# failed, after all steps.
set -uo pipefail

small=${SMALL:-}
[ "$small" != 0 ] || small=
python=${PYTHON:-python3} wheels=${WHEELS:-} OUT=${OUT:-gpu-results} list='' only='' child='' work=''
failed=() here=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

gpu() { [ -n "$small" ] || printf '%s\n' "$@"; }  # arguments for a GPU
tiny() { [ -z "$small" ] || printf '%s\n' "$@"; } # and for SMALL

# -- the calls; a step has a name, its limit in seconds on a GPU, and a command ----------------------
# shellcheck disable=SC2046 # no argument has a space
call_kernels() {
    step machine 30 bash -c 'nvidia-smi; exec "$@"' bash "$python" bench/rows.py "${to[@]}"
    step doctor 40 "$python" -m slimwhisper doctor
    step digits 40 "$python" -m slimwhisper transcribe samples/countdown.flac --model digits \
        --output_dir "$work/texts"
    step triton 120 "${pytest[@]}" -m 'not slow' tests/kernels/test_triton_kernels.py \
        tests/kernels/test_dispatch.py $(gpu $xdist) $(tiny -k test_combine)
    step hopper 60 "${pytest[@]}" -m 'not slow' tests/kernels/test_hopper.py $(gpu $xdist)
    step graphs 90 "${pytest[@]}" -m gpu tests/kernels/test_graphs.py
    step marked 40 "${pytest[@]}" -m gpu --continue-on-collection-errors \
        $(grep -rl --include='test_*.py' 'mark\.gpu' tests | grep -v -e test_graphs -e test_hopper | sort)
    step attention 150 $(tiny env TRITON_INTERPRET=1 SLIMWHISPER_KERNELS=triton) \
        "$python" bench/kernels.py "${to[@]}" \
        $(gpu --shapes large-v3 --windows 64 256 --operations E E8 KV X X8 text-KV) \
        $(tiny --windows 2 --operations E X --repeats 1 --cold_mb 0)
}

# shellcheck disable=SC2046
call_steps() {
    local decode=("$python" bench/decode.py) more=("${to[@]}" $(gpu --shapes large-v3))
    step decode 240 "${decode[@]}" steps "${more[@]}" --forms slim slim-fp8 baseline --beams 1 \
        $(gpu --windows 1 64 256 --tokens 115 --before 223) $(tiny --windows 2 --steps 1 --tokens 2)
    step profile 110 "${decode[@]}" profile "${more[@]}" $(gpu --windows 64 --forms slim baseline) \
        $(tiny --forms slim --windows 2 --together --repeats 1)
    local prompts=(prompts "${more[@]}" --forms slim)
    prompts+=($(gpu --together 1 2 4 8) $(tiny --together 1 --repeats 1))
    step prompts 80 "${decode[@]}" "${prompts[@]}"
    step prompts-flash 80 env TORCH_CUDNN_SDPA_DEPRIORITIZED=1 "${decode[@]}" "${prompts[@]}"
    step waits 70 "${decode[@]}" waits "${more[@]}" --forms slim $(gpu --windows 64) \
        $(tiny --windows 1 --tokens 2)
}

# shellcheck disable=SC2046
call_whole() {
    step end-to-end 360 "$python" bench/end_to_end.py "${to[@]}" \
        $(gpu --shapes large-v3 --slots 64 256 --windows 1024 --serially) \
        $(tiny --windows 2 --tokens 2 --rounds 1)
    step mlperf 220 "$python" bench/mlperf.py "${to[@]}" \
        $(gpu --shapes large-v3 --slots 64 256 --minutes 0.8) $(tiny --windows 2)
}

# shellcheck disable=SC2046
call_exact() {
    step exactness 240 "$python" bench/gpu_exactness.py "${to[@]}" \
        $(gpu --shapes large-v3 --forms slim baseline slim-fp8) $(tiny --windows 1 --tokens 6 --steps 2)
    step peers 340 "$python" bench/peers.py "${to[@]}" \
        $(gpu --device cuda --shapes large-v3 --tokens 100 --batches 64,1 --files 256 --dtypes float16 --rounds 2) \
        $(tiny --engines openai-whisper,slimwhisper --dtypes float32 --batches 1 --files 1 --tokens 2 --rounds 1)
}

# shellcheck disable=SC2046
call_tune() { # writes where the table is read
    step tune 200 "$python" bench/tune.py "${to[@]}" \
        $(gpu --widths 1280 --dtypes float16 --jobs "$(nproc)") \
        $(tiny --widths 64 --dtypes float32 --kernels latent --table "$OUT/configurations.json")
}

calls=(kernels steps whole exact tune)
all() { for call in "${calls[@]}"; do "call_$call"; done; }

# Runs a step: its output to the log, the end of it to the screen, its status to the results.
step() {
    local name=$1 limit=$2 since=$SECONDS start status last
    shift 2
    [ "${only:-$name}" = "$name" ] || return 0
    [ -z "$small" ] || limit=$((4 * limit)) # the limits are a GPU's
    [ "${LIMIT:-$limit}" -ge "$limit" ] || limit=$LIMIT
    if [ -n "$list" ]; then
        echo "$name $limit"
        return
    fi
    echo "== $name, at most $limit s" | tee -a "$log"
    start=$(wc -c <"$log")
    timeout -k 5 "$limit" "$@" >>"$log" 2>&1 </dev/null &
    child=$!
    wait "$child"
    status=$?
    child=
    tail -c "+$((start + 1))" "$log" | grep -v '^{"' | tail -n 12 | cut -c 1-200
    last=$(tail -c "+$((start + 1))" "$log" | grep -v '^{"' | tail -n 1 | tr -cd '[:alnum:] ,.;:=_/()-' | cut -c 1-100)
    echo "   status $status after $((SECONDS - since)) s" | tee -a "$log"
    printf '{"bench": "steps", "step": "%s", "status": %d, "seconds": %d, "last": "%s"}\n' \
        "$name" "$status" "$((SECONDS - since))" "$last" >>"$results"
    [ "$status" = 0 ] || failed+=("$name ($status)")
}

to=() pytest=() xdist=''
names=" $(list=1 all | cut -d ' ' -f 1 | tr '\n' ' ')"
if [ "${1:-}" = --list ]; then
    list=1
    shift
    [ $# -gt 0 ] || set -- all
fi
[ $# -gt 0 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
for word in "$@"; do
    case " ${calls[*]} all$names" in
        *" $word "* | *" $word") ;;
        *) echo "no step $word; calls: ${calls[*]} all; steps:$names" >&2; exit 2 ;;
    esac
done

if [ -z "$list" ]; then
    OUT=$(cd "$here" && mkdir -p "$OUT" && cd "$OUT" && pwd) || exit 2
    [ -z "$wheels" ] || wheels=$(cd "$here" && cd "$wheels" && pwd) || exit 2
    log=$OUT/log.txt results=$OUT/results.jsonl to=(--results "$OUT/results.jsonl")
    # without the project's own options, which need pytest-xdist
    pytest=("$python" -m pytest -q -o addopts=--import-mode=importlib -p no:cacheprovider -W ignore)
    unset TRITON_INTERPRET SLIMWHISPER_KERNELS # what is measured is what users get
    work=$(mktemp -d) || exit 2
    trap 'rm -rf "$work"' EXIT
    trap '[ -z "$child" ] || kill "$child"; exit 130' INT TERM
    export PYTHONUNBUFFERED=1 PYTHONPATH=$work/site:$PWD${PYTHONPATH:+:$PYTHONPATH}
    [ -z "$wheels" ] || step wheels 45 "$python" -m pip install --quiet --no-index --no-deps \
        --no-compile --target "$work/site" "$wheels"/*.whl
    if [ -z "$small" ] && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
        echo "torch finds no CUDA device; to try this on a CPU: SMALL=1 bench/gpu.sh all" >&2
        exit 2
    fi
    ! "$python" -c 'import xdist' 2>/dev/null || xdist='-n 8'
fi
for word in "$@"; do
    only=
    case $word in
        all) all ;;
        kernels | steps | whole | exact | tune) "call_$word" ;;
        *) only=$word && all ;;
    esac
done
[ -z "$list" ] || exit 0
[ -f "$OUT/configurations.json" ] && [ -n "$small" ] || cp kernels/configurations.json "$OUT/"
[ ${#failed[@]} = 0 ] || echo "failed (124: stopped at its limit): ${failed[*]}" | tee -a "$log"
echo "results: $OUT"
[ ${#failed[@]} = 0 ]
