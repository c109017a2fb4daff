#!/usr/bin/env bash
# The first hour on a GPU, in commands of under ten minutes each. See docs/gpu-bench.md.
#
#     bench/gpu.sh first|second|third|all|STEP ...    (--list: the steps and their limits in seconds)
#     bench/gpu.sh --small [...]                      all of it on a CPU, in tiny shapes
#
# Environment: OUT, the folder of log.txt, results.jsonl and configurations.json (./gpu-results);
# PYTHON (python3); WHEELS, a folder of wheels to use; SMALL=1 for --small; LIMIT, seconds that no
# step may exceed; COMMIT, where the tree has no .git. The exit status is 1 if a step failed, after all steps.
set -uo pipefail

first=(machine doctor digits profile kernels graphs marked triton)
second=(decode tune)
third=(peers)

usage() {
    sed -n '2,9s/^# \{0,1\}//p' "$0"
}

small=${SMALL:-}
[ "$small" = 0 ] && small=
list=
steps=()
for word in "$@"; do
    case $word in
        --small) small=1 ;;
        --list) list=1 ;;
        first) steps+=("${first[@]}") ;;
        second) steps+=("${second[@]}") ;;
        third) steps+=("${third[@]}") ;;
        all) steps+=("${first[@]}" "${second[@]}" "${third[@]}") ;;
        machine | doctor | digits | profile | kernels | graphs | marked | triton | decode | tune | peers)
            steps+=("$word")
            ;;
        -h | --help)
            usage
            exit
            ;;
        *)
            echo "no step $word; the steps: ${first[*]} ${second[*]} ${third[*]}" >&2
            exit 2
            ;;
    esac
done
if [ ${#steps[@]} = 0 ]; then
    [ -n "$small$list" ] || { usage >&2; exit 2; }
    steps=("${first[@]}" "${second[@]}" "${third[@]}")
fi

OUT=${OUT:-gpu-results}
[ -n "$list" ] || mkdir -p "$OUT" || exit 2
[ -n "$list" ] || OUT=$(cd "$OUT" && pwd)
python=${PYTHON:-python3}
wheels=
if [ -n "${WHEELS:-}" ]; then wheels=$(cd "$WHEELS" && pwd) || exit 2; fi
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
log=$OUT/log.txt
results=$OUT/results.jsonl
unset TRITON_INTERPRET SLIMWHISPER_KERNELS # what is measured is what users get
export PYTHONUNBUFFERED=1

# The command of a step, and the seconds it may take.
prepare() {
    local to=(--results "$results") test
    # without the project's own options, which need pytest-xdist
    local pytest=("$python" -m pytest -q -o addopts=--import-mode=importlib -p no:cacheprovider
        -W ignore)
    case $1 in
        wheels)
            limit=45
            command=("$python" -m pip install --quiet --no-index --no-deps --no-compile
                --target "$work/site" "$wheels"/*.whl)
            ;;
        machine)
            limit=30
            command=(bash -c 'nvidia-smi; exec "$@"' bash "$python" bench/rows.py "${to[@]}")
            ;;
        doctor)
            limit=40
            command=("$python" -m slimwhisper doctor)
            ;;
        digits)
            limit=40
            command=("$python" -m slimwhisper transcribe samples/countdown.flac --model digits
                --output_dir "$work/texts")
            ;;
        profile) # encoder, prompt and step, by kernel
            limit=160
            command=("$python" bench/decode.py profile "${to[@]}")
            if [ -n "$small" ]; then
                command+=(--forms slim --windows 2 --together --repeats 1)
            else
                command+=(--shapes large-v3 --windows 64)
            fi
            ;;
        kernels)
            limit=100
            command=("$python" bench/kernels.py "${to[@]}")
            if [ -n "$small" ]; then
                command=(env TRITON_INTERPRET=1 SLIMWHISPER_KERNELS=triton "${command[@]}" --windows 2
                    --operations E X --repeats 1 --cold_mb 0 --layers 1)
            else
                command+=(--shapes large-v3 --windows 64 256 --operations E "E, float8" "K, V" X
                    "X, float8" "text K, V")
            fi
            ;;
        graphs)
            limit=50
            command=("${pytest[@]}" -m gpu tests/kernels/test_graphs.py)
            ;;
        marked) # the other tests that need a GPU
            limit=40
            command=("${pytest[@]}" -m gpu --continue-on-collection-errors)
            while read -r test; do command+=("$test"); done < <(
                grep -rl --include='test_*.py' 'mark\.gpu' tests | grep -v test_graphs.py | sort
            )
            ;;
        triton)
            limit=75
            command=("${pytest[@]}" -m 'not slow' tests/kernels/test_triton_kernels.py
                tests/kernels/test_dispatch.py)
            if [ -n "$small" ]; then
                command+=(-k test_combine)
            elif "$python" -c 'import xdist' 2>/dev/null; then
                command+=(-n 8)
            fi
            ;;
        decode)
            limit=330
            command=("$python" bench/decode.py steps "${to[@]}" --forms slim 'slim fp8' baseline
                --beams 1)
            if [ -n "$small" ]; then
                command+=(--windows 2 --steps 1 --tokens 2)
            else
                command+=(--shapes large-v3 --windows 64 256 --tokens 115 --before 223)
            fi
            ;;
        tune) # its result is written where the table is read
            limit=200
            command=("$python" bench/tune.py "${to[@]}")
            if [ -n "$small" ]; then
                command+=(--widths 64 --dtypes float32 --kernels latent
                    --table "$OUT/configurations.json")
            else
                command+=(--widths 1280 --dtypes float16 --jobs "$(nproc)")
            fi
            ;;
        peers) # end to end
            limit=540
            command=("$python" bench/peers.py "${to[@]}")
            if [ -n "$small" ]; then
                command+=(--engines openai-whisper,slimwhisper --dtypes float32 --batches 1 --files 1
                    --tokens 2 --rounds 1)
            else # the engines that are installed
                command+=(--device cuda --shapes large-v3 --tokens 100 --batches 64,1 --files 256
                    --dtypes float16,float16-fp8 --rounds 2)
            fi
            ;;
    esac
    [ -z "$small" ] || limit=$((4 * limit)) # the limits are a GPU's
    if [ "${LIMIT:-$limit}" -lt "$limit" ]; then limit=$LIMIT; fi
}

if [ -n "$list" ]; then
    work=
    for name in "${steps[@]}"; do
        prepare "$name"
        echo "$name $limit"
    done
    exit
fi

work=$(mktemp -d) || exit 2
child=
trap 'rm -rf "$work"' EXIT
trap '[ -z "$child" ] || kill "$child"; exit 130' INT TERM
export PYTHONPATH=$work/site:$PWD${PYTHONPATH:+:$PYTHONPATH}
failed=()

# Runs one step: its output to the log, the end of it to the screen, its status to the results.
run() {
    local name=$1 since=$SECONDS start status last
    prepare "$name"
    echo "== $name, at most $limit s" | tee -a "$log"
    start=$(wc -c <"$log")
    timeout -k 5 "$limit" "${command[@]}" >>"$log" 2>&1 </dev/null &
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

[ -z "$wheels" ] || run wheels
if [ -z "$small" ] && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "torch finds no CUDA device; to try this on a CPU: bench/gpu.sh --small" >&2
    exit 2
fi
for name in "${steps[@]}"; do
    run "$name"
done
[ -f "$OUT/configurations.json" ] && [ -n "$small" ] || cp kernels/configurations.json "$OUT/"
[ ${#failed[@]} = 0 ] || echo "failed (124: stopped at its limit): ${failed[*]}" | tee -a "$log"
echo "results: $OUT"
[ ${#failed[@]} = 0 ]
