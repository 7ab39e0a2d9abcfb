#!/bin/bash
#SBATCH --job-name=seatrial-nightly
#SBATCH --nodes=1
#SBATCH --time=120
# Slurm: sbatch --export=ALL,REPOSITORY=/shared/stack,STATE=/shared/nightly nightly.sh
# Compares the newest commit of the branch with the last one that had a good night. The exit status is that of
# `seatrial compare`: 1 only for what the new commits broke, 3 if that is not known.
set -euo pipefail

: "${REPOSITORY:?folder of the clone}" "${STATE:?folder that all nodes share, for reports and the last good commit}"
BRANCH=${BRANCH:-main}
LEVEL=${LEVEL:-0}

cd "$REPOSITORY"
mkdir -p "$STATE"
git fetch --quiet origin "$BRANCH"
new=$(git rev-parse FETCH_HEAD)
good=$(cat "$STATE/good" 2>/dev/null || git rev-parse "$new~1")
if [ "$new" = "$good" ]; then
    echo "nothing new since $good"
    exit 0
fi

status=0
seatrial compare "$good" "$new" --target stack.yaml --level "$LEVEL" --quarantine quarantine.yaml \
    --output "$STATE/runs" || status=$?
if [ "$status" = 0 ]; then
    echo "$new" > "$STATE/good.new"
    mv "$STATE/good.new" "$STATE/good"
fi
exit "$status"
