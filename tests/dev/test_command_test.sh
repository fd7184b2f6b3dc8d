#!/usr/bin/env bash
# Tests ./dev test: its summary for a small project, which counts skipped tests by reason; outcomes that change between
# runs; --data; and --repeat with --load.
set -euo pipefail
source=$1
# shellcheck source=tests/dev/summary.sh
. "$source/tests/dev/summary.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(small NONE)
enable_testing()
foreach(test "skips (once)|echo 'skipped: no [chromium], none (at all)' && echo behind && exit 4" "skips, too|echo 'skipped: no [chromium], none (at all)' && exit 4"
             "other|echo 'skipped: one core only' && exit 4" "silent|exit 4" "passes|echo 'skipped: not me'" "takes long|sleep 0.3" "fails|seq 30 && exit 1" "left out|exit 0")
  string(REPLACE "|" ";" test "${test}")
  list(GET test 0 name)
  list(GET test 1 command)
  add_test(NAME "small: ${name}" COMMAND sh -c "${command}")
  set_tests_properties("small: ${name}" PROPERTIES SKIP_RETURN_CODE 4)
endforeach()
set_tests_properties("small: left out" PROPERTIES DISABLED TRUE)
CMAKE
cmake -S "$folder" -B "$folder/build" >/dev/null
ctest --test-dir "$folder/build" >"$folder/log" 2>&1 || true

summary=$(test_summary small "$folder/log" "$folder/build/Testing/Temporary/LastTest.log")
expect() { grep -qxE -- "$1" <<<"$summary" || { printf 'lacks: %s\nin:\n%s\n' "$1" "$summary"; exit 1; }; }
expect 'small: slowest: [0-9]+\.[0-9]+ sec  small: takes long'
expect 'small: not run: 2: no \[chromium\], none \(at all\)'
expect 'small: not run: 1: one core only'
expect 'small: not run: 1: without a reason: small: silent'
expect 'small: not run: 1: Disabled: small: left out'
expect 'small: 8[0-9]% tests passed, 1 tests failed out of 7, 4 skipped'
expect 'small: failed: [0-9]+ - small: fails \(Failed\)'
expect 'small: the last lines of small: fails:'
expect 'small:   19'
expect 'small:   30'
if grep -qx 'small:   18' <<<"$summary"; then printf 'more than 12 lines of a failed test:\n%s\n' "$summary"; exit 1; fi
slowest=$(sed -n 's/^small: slowest: \([0-9.]*\) sec .*/\1/p' <<<"$summary")
[[ $slowest == "$(sort -rn <<<"$slowest")" ]] || { printf 'not the slowest first:\n%s\n' "$summary"; exit 1; }
[[ $(grep -c slowest <<<"$summary") -le 10 ]]
if grep -q 'not me' <<<"$summary"; then printf 'a test that passed counts as skipped:\n%s\n' "$summary"; exit 1; fi
[[ $(test_summary none "$folder/none" "$folder/none" 2>/dev/null) == *'none: no test ran, '* ]]

# Runs of which one test failed and another crashed or was missing.
test_outcomes "$folder/log" >"$folder/first"
[[ $(grep -c . "$folder/first") == 8 ]] || { cat "$folder/first"; exit 1; }
grep -qxP 'small: fails\tFailed' "$folder/first"
grep -qxP 'small: skips \(once\)\tSkipped' "$folder/first"
sed 's/\(small: passes\tP.*\)/small: passes\tFailed/; s/\(small: fails\tF.*\)/small: fails\tException: SegFault/' "$folder/first" >"$folder/second"
sed '/small: takes long/d' "$folder/first" >"$folder/third"
[[ -z $(changed_outcomes "$folder/first" "$folder/first") ]]
changed=$(changed_outcomes "$folder/first" "$folder/second" "$folder/third")
for line in 'small: passes: 1 Failed, 2 Passed' 'small: fails: 2 Failed, 1 Exception: SegFault' 'small: takes long: 2 Passed, 1 missing'; do
  grep -qxF "$line" <<<"$changed" || { printf 'lacks: %s\nin:\n%s\n' "$line" "$changed"; exit 1; }
done
[[ $(grep -c . <<<"$changed") == 3 ]]
[[ $(test_outcomes <(printf '%s\n' ' 7/12 Test  #8: a name. Of two ....***Exception: SegFault  0.10 sec' '12/12 Test #12: long name   Passed    9.05 sec' \
  '11/12 Test #11: stops ......Subprocess aborted***Exception:   0.10 sec')) == $'a name. Of two\tException: SegFault\nlong name\tPassed\nstops\tException' ]]

# A run of many tests: its list is larger than a pipe's buffer.
for i in $(seq 3000); do printf '%d/3000 Testing: many: test %d, with a long name for a long list\nTest time = 0.%04d sec\n' "$i" "$i" "$i"; done >"$folder/many"
printf '99%% tests passed, 1 tests failed out of 3000\n' >"$folder/many_printed"
summary=$(set -euo pipefail; test_summary many "$folder/many_printed" "$folder/many")
expect 'many: slowest: 0\.3000 sec  many: test 3000, .*'
expect 'many: 99% tests passed, 1 tests failed out of 3000, 0 skipped'

# --data: a folder relative to the caller's. If it is missing, nothing is built.
mkdir -p "$folder/bin" "$folder/data/mnist" "$folder/empty"
printf '#!/bin/sh\necho "cmake sees $DP_TEST_DATA"\nexit 9\n' >"$folder/bin/cmake"
chmod +x "$folder/bin/cmake"
dev_test() { (cd "$folder" && PATH="$folder/bin:$PATH" DP_SKIP_DEPS=1 "$source/dev" test --data "$1" 2>&1); }
if said=$(dev_test empty); then exit 1; fi
[[ $said == "dev: $folder/empty, named by --data or DP_TEST_DATA, has neither mnist/ nor cifar10/" ]] || { echo "$said"; exit 1; }
if said=$(dev_test missing); then exit 1; fi
[[ $said == *missing* && $said != *cmake* ]] || { echo "$said"; exit 1; }
if said=$(dev_test data); then exit 1; fi
[[ $said == *"cmake sees $folder/data"* ]] || { echo "$said"; exit 1; }

# --repeat and --load, in a copy of dev whose ctest fails one of two tests in the second run.
mkdir -p "$folder/copy/tests/dev" "$folder/copy/build/release/Testing/Temporary" "$folder/repeat"
touch "$folder/copy/build/release/Testing/Temporary/LastTest.log"
cp "$source/dev" "$folder/copy/"
cp "$source/tests/dev/summary.sh" "$folder/copy/tests/dev/"
printf '#!/bin/sh\nexit 0\n' >"$folder/repeat/cmake"
# Adds a line to "$folder/calls": its arguments, then the number of processes of dev. Before that it waits until tee has
# started, which is such a process until then.
cat >"$folder/repeat/ctest" <<SH
#!/bin/sh
echo "call \$\$"
until grep -qx "call \$\$" build/release/ctest.log; do sleep 0.01; done
echo "\$* \$(cat /proc/[0-9]*/cmdline 2>/dev/null | grep -acz '^$folder/copy/dev\$')" >>"$folder/calls"
run=\$(grep -c . "$folder/calls")
echo '1/2 Test #1: small: passes ....   Passed    0.01 sec'
if [ \$run = 2 ]; then
  printf '2/2 Test #2: small: turns ....***Failed    0.01 sec\n\n50%% tests passed, 1 tests failed out of 2\n'
  printf 'The following tests FAILED:\n\t  2 - small: turns (Failed)\nErrors while running CTest\n'
  exit 8
fi
printf '2/2 Test #2: small: turns ....   Passed    0.01 sec\n\n100%% tests passed, 0 tests failed out of 2\n'
SH
chmod +x "$folder/repeat/cmake" "$folder/repeat/ctest"
repeat_test() { PATH="$folder/repeat:$PATH" DP_SKIP_DEPS=1 "$folder/copy/dev" test --repeat "$@" 2>&1; }
if summary=$(repeat_test 3 --load); then echo 'a changed outcome passes'; exit 1; fi
cores=$(nproc)
expect "== release: beside $cores busy cores, $((4 * cores)) tests at once"
expect '== release, run 1: 100% tests passed, 0 tests failed out of 2'
expect '== release, run 2: 50% tests passed, 1 tests failed out of 2'
expect '== release: failed: 2 - small: turns \(Failed\)'
expect '== release: not always the same: small: turns: 2 Passed, 1 Failed'
expect '== release: 1 tests changed their outcome in 3 runs'
[[ $(grep -c -- "-j $((4 * cores)) .*-L ^fast" "$folder/calls") == 3 ]] || { cat "$folder/calls"; exit 1; }
loaded=$(sed -n '1s/.* //p' "$folder/calls")
summary=$(repeat_test 2) || { printf 'the same outcomes fail:\n%s\n' "$summary"; exit 1; }
expect '== release: 0 tests changed their outcome in 2 runs'
unloaded=$(sed -n '4s/.* //p' "$folder/calls")
[[ $((loaded - unloaded)) == "$cores" ]] || { echo "busy processes: $loaded with --load, $unloaded without"; exit 1; }
