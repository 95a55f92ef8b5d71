#!/usr/bin/env bash
#SBATCH --job-name=beam
#SBATCH --array=1-4
#SBATCH --cpus-per-task=1
#SBATCH --mem=1G
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --output=beam_%A_%a.log
#
# One run in SHARDS parts, each an array task with an answers file of its own, then judged into one scores file.
# Adapt the settings below, then submit from the folder of this repository:
#
#   job=$(sbatch --parsable examples/slurm_array.sh)
#   sbatch --array=1 --dependency=afterok:$job examples/slurm_array.sh judge
#
# A task that stopped early, or met its time limit, goes on where it was when it is submitted again, alone or with all
# the others: sbatch --array=3 examples/slurm_array.sh. Tasks that are done end at once and ask nothing.
#
# The tasks send requests side by side: an endpoint sees SHARDS x --concurrency of them, from SHARDS x --open-chats
# chats. Where all tasks share one server, keep that second product at what its prefix cache holds.
#
# Without Slurm, one part after the other:
#   for i in 1 2 3 4; do SLURM_ARRAY_TASK_ID=$i bash examples/slurm_array.sh; done; bash examples/slurm_array.sh judge

set -euo pipefail

# --array above must be 1-SHARDS. Not taken from SLURM_ARRAY_TASK_COUNT: that is 1 when a single task is submitted again.
SHARDS=${SHARDS:-4}
TAG=${TAG:-1m}
OUT=${OUT:-runs/$TAG}
MODEL=${MODEL:-my-model}
BASE_URL=${BASE_URL:-http://localhost:8000/v1}
JUDGE_MODEL=${JUDGE_MODEL:-gpt-oss-120b}
JUDGE_BASE_URL=${JUDGE_BASE_URL:-http://localhost:8001/v1}
PYTHON=${PYTHON:-python}
# The keys come from the environment: BEAM_API_KEY and JUDGE_API_KEY. A server without keys still needs some text.

# Slurm runs a copy of this script from elsewhere, so the repository is where it was submitted.
cd "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"
mkdir -p "$OUT"

shard_file() { echo "$OUT/answers.$1-of-$SHARDS.jsonl"; }

if [ "${1:-}" = judge ]; then
  files=()
  for ((i = 1; i <= SHARDS; i++)); do
    if [ -s "$(shard_file "$i")" ]; then
      files+=("$(shard_file "$i")")
    else
      echo "shard $i of $SHARDS has no answers: it has not run yet, or there are fewer chats than shards" >&2
    fi
  done
  [ "${#files[@]}" -gt 0 ] || { echo "nothing to judge in $OUT" >&2; exit 2; }
  exec "$PYTHON" beam_judge.py --answers "${files[@]}" --output "$OUT/scores.jsonl" \
    --judge-model "$JUDGE_MODEL" --judge-base-url "$JUDGE_BASE_URL" \
    --judge-reasoning-effort high --retry-errors
fi

: "${SLURM_ARRAY_TASK_ID:?is not set: submit with sbatch, or set it to a number from 1 to $SHARDS}"
# exec, so that the signal before the time limit reaches the program: it saves what it has and ends with 143.
exec "$PYTHON" beam_generate.py --shard "$SLURM_ARRAY_TASK_ID/$SHARDS" --output "$(shard_file "$SLURM_ARRAY_TASK_ID")" \
  --tag "$TAG" --model "$MODEL" --base-url "$BASE_URL" --retry-errors
