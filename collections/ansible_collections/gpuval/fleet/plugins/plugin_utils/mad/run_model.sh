# Runs one model in its container: its files from the image, its data, then its script, unchanged.
# MODEL_* stand in lines before these.
fail() { echo "gpuval: $1" >&2; exit 1; }
# From s3://BUCKET/KEY, an object or a folder, into this folder, by the account of credential.json.
fetch_s3() {
    local user=${1}_USERNAME password=${1}_PASSWORD endpoint=${1}_MINIO_ENDPOINT from=${2%/} tool=$PWD.aws
    export AWS_ACCESS_KEY_ID=${!user} AWS_SECRET_ACCESS_KEY=${!password} AWS_EC2_METADATA_DISABLED=true
    export AWS_DEFAULT_REGION=${AWS_DEFAULT_REGION:-us-east-2} # where model repositories of this kind have their data
    set -- ${!endpoint:+--endpoint-url "${!endpoint}"} s3
    if ! command -v aws > /dev/null; then
        "$GPUVAL_PYTHON" -m pip install --quiet --target "$tool" awscli || fail "no aws in the image, and none to install"
        aws() { PYTHONPATH=$tool "$GPUVAL_PYTHON" -m awscli "$@"; }
    fi
    if aws "$@" ls "$from/" > /dev/null; then
        aws "$@" sync --only-show-errors "$from/" .
    else
        aws "$@" cp --only-show-errors "$from" .
    fi
}
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
processes=${MODEL_PROCESSES#0}
export NPROC_PER_NODE=${processes:-$((MAD_RUNTIME_NGPUS > 0 ? MAD_RUNTIME_NGPUS : 1))}
if [ -n "$MODEL_RUNNER" ]; then
    where="--master_addr=$MASTER_ADDR --master_port=$MASTER_PORT"
    eval "export MAD_MULTI_NODE_RUNNER=\"$MODEL_RUNNER\""
fi
leave() {
    [ -z "$MODEL_KEPT" ] || { mkdir -p "$MODEL_KEPT/$GPUVAL_RUN_ID" && cp -R . "$MODEL_KEPT/$GPUVAL_RUN_ID/"; } \
        || echo "gpuval: the folder of the model was not kept: is there room?" >&2
    [ -z "${shared:-}" ] || rm -rf "$shared"
}
trap leave EXIT
files=${GPUVAL_MAD_FILES:-${MODEL_FILES:-$GPUVAL_WORK_DIR/gpuval_mad}}
if [ -f gpuval_mad ]; then # they came with the job, into an image that does not have them
    mkdir -p "$files" && "$GPUVAL_PYTHON" -m base64 -d gpuval_mad > "$files.tar.gz" \
        && "$GPUVAL_PYTHON" -m tarfile -e "$files.tar.gz" "$files" || fail "the files of the model cannot be unpacked"
    rm -f gpuval_mad "$files.tar.gz"
fi
if [ -n "$MODEL_SLURM" ]; then # a batch file: the nodes of its job share a folder
    [ -d "$files" ] || fail "$(hostname) does not have $files: put gpuval_state_dir into a folder that all nodes mount"
    shared=$files/$SLURM_JOB_ID
    mkdir "$shared" && cd "$shared" || fail "no folder $shared can be made: see the line above"
    set -- $(squeue --noheader --jobs="$SLURM_JOB_ID" --format="%N %D")
    [ -n "${2:-}" ] || fail "squeue does not show job $SLURM_JOB_ID: see the line above"
    export SLURM_JOBID=$SLURM_JOB_ID SLURM_JOB_NODELIST=$1 SLURM_NODELIST=$1 SLURM_JOB_NUM_NODES=$2 SLURM_NNODES=$2
    export SLURM_SUBMIT_DIR=$shared/$MODEL_SLURM SLURM_OVERLAP=1 # the step of the job that this is has all that there is
    eval "export $MODEL_OPTIONS"
fi
if [ "$GPUVAL_STEP" != model ] || [ -z "$MODEL_PREPARED" ]; then
    cp -R "$files/model/." . || fail "the files of the model cannot be copied: is the disk full?"
    SECONDS=0
    eval "$MODEL_DATA" || fail "the data of the model is not there: see the lines above"
    if [ -n "$MODEL_FETCHED" ]; then
        seconds=$SECONDS
        eval "echo \"gpuval data: $seconds s, \$(du -sbc $MODEL_FETCHED | tail -n 1 | cut -f 1) bytes\""
    fi
    eval "$MODEL_BEFORE" || fail "a script of pre_scripts failed: see the lines above"
fi
[ "$GPUVAL_STEP" = model ] || exit 0 # a step before that of the model, on each node
cd "./$MODEL_SLURM"
eval "$MODEL_COMMAND" || exit # its own last line is what the record shows
csv=$GPUVAL_JOB_DIR/${MAD_OUTPUT_CSV:-}
for place in . ..; do # most scripts move their results one folder up
    [ -f "$csv" ] || [ -z "${MAD_OUTPUT_CSV:-}" ] || [ ! -f "$place/$MAD_OUTPUT_CSV" ] || cp "$place/$MAD_OUTPUT_CSV" "$csv"
done
if [ -f "$csv" ]; then
    echo "gpuval results begin"
    head -c 4194304 "$csv"
    echo
    echo "gpuval results end"
fi
eval "$MODEL_AFTER" || fail "a script of post_scripts failed: see the lines above"
