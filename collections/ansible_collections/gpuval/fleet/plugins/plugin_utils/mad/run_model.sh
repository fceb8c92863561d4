# Runs one model in its container: its files from the image, its data, then its script, unchanged.
# MODEL_* stand in lines before these.
fail() { echo "gpuval: $1" >&2; exit 1; }
for name in ${MAD_SYSTEM_GPU_ARCHITECTURE:-} ${MAD_SYSTEM_GPU_PRODUCT_NAME:-}; do
    case ",$MODEL_SKIPS," in
    *",${name%%:*},"*) # gfx90a:sramecc+:xnack- is gfx90a
        printf '{"state": "skipped", "message": "skip_gpu_arch names %s"}' "$name" > "$GPUVAL_RESULT_FILE"
        exit 0
        ;;
    esac
done
gpus=${GPUVAL_GPU_COUNT:-0}
export MAD_RUNTIME_NGPUS=${gpus:-0}
if [ "$MAD_RUNTIME_NGPUS" -gt 0 ]; then
    chosen=${MODEL_GPUS:-$(seq -s, 0 $((gpus - 1)))}
    count=$(tr ',' '\n' <<< "$chosen" | wc -l)
    [ "${chosen##*,}" -lt "$gpus" ] || fail "docker_gpus names GPU ${chosen##*,}, the node has $gpus: name others"
    [ "$MODEL_N_GPUS" -le "$count" ] || fail "n_gpus is $MODEL_N_GPUS, and the node offers $count: choose other nodes"
    [ "$MODEL_N_GPUS" -lt 1 ] || chosen=$(cut -d, -f1-"$MODEL_N_GPUS" <<< "$chosen") count=$MODEL_N_GPUS
    export MAD_RUNTIME_NGPUS=$count
    case ${GPUVAL_ACCELERATOR:-} in
    amd) export HIP_VISIBLE_DEVICES=$chosen ;;
    nvidia) export CUDA_VISIBLE_DEVICES=$chosen ;;
    gaudi) export HABANA_VISIBLE_MODULES=$chosen ;;
    esac
fi
if [ -n "$MODEL_RUNNER" ]; then
    processes=${MODEL_PROCESSES#0}
    export MAD_MULTI_NODE_RUNNER=$MODEL_RUNNER${processes:-$((MAD_RUNTIME_NGPUS > 0 ? MAD_RUNTIME_NGPUS : 1))}
fi
files=${GPUVAL_MAD_FILES:-$MODEL_FILES}
cp -R "$files/model/." . || fail "the files of the model cannot be copied: is the disk full?"
eval "$MODEL_DATA" || fail "the data of the model is not there: see the lines above"
eval "$MODEL_BEFORE" || fail "a script of pre_scripts failed: see the lines above"
eval "$MODEL_COMMAND" || exit # its own last line is what the record shows
if [ -n "${MAD_OUTPUT_CSV:-}" ] && [ ! -f "$MAD_OUTPUT_CSV" ] && [ -f "../$MAD_OUTPUT_CSV" ]; then
    cp "../$MAD_OUTPUT_CSV" "$MAD_OUTPUT_CSV" # most scripts move their results one folder up
fi
if [ -n "${MAD_OUTPUT_CSV:-}" ] && [ -f "$MAD_OUTPUT_CSV" ]; then
    echo "gpuval results begin"
    head -c 4194304 "$MAD_OUTPUT_CSV"
    echo
    echo "gpuval results end"
fi
eval "$MODEL_AFTER" || fail "a script of post_scripts failed: see the lines above"
