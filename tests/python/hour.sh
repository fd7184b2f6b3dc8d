#!/usr/bin/env bash
# hour.sh <source> <work folder> <python>: the hour of a Python user. Installs the package into a fresh virtual
# environment with pip alone, trains on arrays with two replicas, presses Ctrl-C, resumes, predicts, exports, and runs
# the package's tests. Compares with PyTorch if <python> has it. Exit status 4: pip cannot get the build tools.
set -euo pipefail
source=$1 work=$2 other=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
rm -rf "$work"
mkdir -p "$work"
cd "$work"
say() { printf '== %s\n' "$*"; }

"$other" -m venv venv || { say "skipped: python has no venv"; exit 4; }
python=$work/venv/bin/python
"$python" -m pip download -q --no-deps -d tools 'nanobind>=3.1' scikit-build-core ||
  { say "skipped: pip cannot get nanobind"; exit 4; }
begin=$SECONDS
say "pip install ./apps/python"
CMAKE_BUILD_PARALLEL_LEVEL=2 "$python" -m pip install -q "$source/apps/python"
say "installed in $((SECONDS - begin)) s, $(du -sk venv/lib/python3*/site-packages/dp | cut -f1) KiB"
"$python" -c 'import dp'  # compiles the files
"$python" "$here/import_time.py"

say "train, Ctrl-C"
"$python" "$here/hour.py" train run &
training=$!
for ((i = 0; i < 6000; ++i)); do [[ -e started ]] && break; sleep 0.1; done
kill -INT "$training"
status=0
wait "$training" || status=$?
[[ $status == 130 ]] || { say "Ctrl-C: exit status $status"; exit 1; }
for step in resume predict export; do
  say "$step"
  "$python" "$here/hour.py" $step run
done

say "tests"
for test in network training; do "$python" -B "$here/${test}_test.py"; done
"$python" -B "$here/pages_test.py" "$source"

"$other" -c 'import torch, torchvision' 2>/dev/null || { say "left out: PyTorch is not installed"; exit 0; }
say "beside PyTorch"
PYTHONPATH=$(echo "$work"/venv/lib/python3*/site-packages)
export PYTHONPATH
"$other" "$here/hour.py" compare run
"$other" -B "$here/torch_test.py"
"$other" -B "$here/pages_test.py" "$source"
