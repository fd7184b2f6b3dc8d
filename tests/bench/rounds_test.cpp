// The measured rounds of dp_bench with fake programs: what is sent to each program, and how its answers are used.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "apps/dp_bench/step.h"
#include "bench/fake_programs.h"
#include "dp/device.h"
#include "support/catch.h"

using namespace dp::test;
using dp_bench::measure_steps;
using dp_bench::Measured;
using dp_bench::StepOptions;
using dp_bench::StepResult;
using dp_bench::VariantSpec;
using Lines = std::vector<std::string>;

namespace {

Lines progress;
void tell(const std::string& line) { progress.push_back(line); }

StepOptions two_rounds() {
  StepOptions options;
  options.rounds = 2;
  options.steps = 2;
  options.warmup = 3;
  options.threads = 2;
  return options;
}

VariantSpec variant(const std::string& name, const Lines& words = {}, const std::string& group = "dp", int devices = 1,
                    int processes = 1) {
  VariantSpec spec{name, "title of " + name, group, devices, processes, "", {"name=" + name}};
  spec.arguments.insert(spec.arguments.end(), words.begin(), words.end());
  return spec;
}

// Each word with a `=` is a field of its first answer.
constexpr const char* kAnswers = R"sh(
ready=ready
for word; do case $word in *=*) ready=$(printf '%s\t%s' "$ready" "$word");; esac; done
printf '%s\n' "$ready"
while read -r command; do log "${1#name=} $command"; say done seconds=1; done
)sh";

// The notes of the variants, "measured" for those without one.
Lines notes_of(const std::vector<VariantSpec>& variants) {
  const FakePrograms fakes;
  fakes.add("bench_step", kAnswers);
  fakes.add("pytorch_step.py", kAnswers);
  StepOptions options = two_rounds();
  options.rounds = 1;
  options.python = "/bin/sh";
  Lines notes;
  for (const Measured& one : measure_steps(options, variants, tell).variants) {
    CHECK(one.seconds_per_step.size() == (one.note.empty() ? 1 : 0));
    notes.push_back(one.note.empty() ? "measured" : one.note);
  }
  return notes;
}

std::string fact(const StepResult& result, const std::string& key) {
  for (const auto& [name, value] : result.facts)
    if (name == key) return value;
  FAIL("no fact " << key);
  return "";
}

}  // namespace

TEST_CASE("rounds: each round starts with the next variant, and memory is the peak of each device") {
  const FakePrograms fakes;
  fakes.add("bench_step", R"sh(
name=${1#name=} n=0
log "$*"
say ready reduce=sharded parameter_bytes=400 device=processor
while read -r command; do
  n=$((n + 1))
  log "$name $command"
  say done seconds=0.0$n peak_bytes=$((n % 3 * 1000))
done
)sh");
  progress.clear();
  const StepOptions options = two_rounds();
  const StepResult result =
      measure_steps(options, {variant("a"), variant("b", {}, "dp", 4), variant("c", {}, "plan")}, tell);
  CHECK(fakes.log() == Lines{"name=a --save-inputs FILE", "name=b", "name=c", "a run 3", "b run 3", "c run 3",
                             "a run 2", "b run 2", "c run 2", "b run 2", "c run 2", "a run 2"});
  CHECK(progress == Lines{"starting title of a", "starting title of b", "starting title of c",
                          "round 1 of 2, ms/step: a 10.0 b 10.0 c 10.0",
                          "round 2 of 2, ms/step: a 15.0 b 15.0 c 15.0"});
  CHECK(result.options.rounds == 2);
  REQUIRE(result.variants.size() == 3);
  for (const Measured& one : result.variants) {
    INFO(one.spec.key);
    REQUIRE(one.seconds_per_step.size() == 2);
    CHECK(one.seconds_per_step[0] == Approx(0.01));
    CHECK(one.seconds_per_step[1] == Approx(0.015));
    REQUIRE(one.replies.size() == 2);
    CHECK(one.replies[0].text("seconds") == "0.02");
    CHECK(one.replies[1].text("seconds") == "0.03");
    CHECK(one.ready.text("device") == "processor");
    CHECK(one.reduce == "sharded");
    CHECK(one.parameter_bytes == 400);
    CHECK(one.bytes_per_device == (one.spec.devices == 4 ? 500 : 2000));
    CHECK(one.note.empty());
  }
  REQUIRE(result.facts.size() == 3);
  CHECK(result.facts[0] == std::pair<std::string, std::string>{"versions", ""});
  CHECK(result.facts[1].first == "others_cores");
  CHECK(result.facts[2].first == "idle_programs_cores");
}

TEST_CASE("rounds: all ranks get the port of rank 0, the slowest rank determines the time, and all end together") {
  const FakePrograms fakes;
  fakes.add("bench_step", R"sh(
log "$*"
rank=none
while [ $# -gt 0 ]; do [ "$1" = --rank ] && rank=$2; shift; done
[ $rank = 0 ] && say listening port=4321
say ready reduce=of$rank
case $rank in 0) seconds=0.2;; 1) seconds=0.4;; *) seconds=0.3;; esac
while read -r command; do
  log "$rank $command"
  say done seconds=$seconds peak_bytes=$(((rank + 1) * 600)) rank=$rank
done
[ $rank = 1 ] && : > "$folder/ended"
if [ $rank = 0 ]; then
  while [ ! -e "$folder/ended" ]; do sleep 0.01; done
  log "the input of rank 1 was closed"
fi
)sh");
  StepOptions options = two_rounds();
  options.rounds = 1;
  for (const char* gpus : {"", "0,1,2,3"}) {
    INFO(gpus);
    options.gpus = gpus;
    std::filesystem::remove(fakes.path() + "/log");
    std::filesystem::remove(fakes.path() + "/ended");
    // On GPUs a rank reports the peak of its fullest device.
    const StepResult result = measure_steps(options, {variant("ranks", {}, "ddp", *gpus ? 6 : 3, 3)}, tell);
    Lines log = fakes.log();
    std::ranges::sort(log);
    CHECK(log == Lines{"0 run 2", "0 run 3", "1 run 2", "1 run 3", "2 run 2", "2 run 3",
                       "name=ranks --save-inputs FILE --rank 0 --ranks 3 --port 0",
                       "name=ranks --save-inputs FILE --rank 1 --ranks 3 --port 4321",
                       "name=ranks --save-inputs FILE --rank 2 --ranks 3 --port 4321",
                       "the input of rank 1 was closed"});
    const Measured& one = result.variants.at(0);
    CHECK(one.note.empty());
    REQUIRE(one.seconds_per_step.size() == 1);
    CHECK(one.seconds_per_step[0] == Approx(0.2));
    CHECK(one.replies.at(0).text("rank") == "0");
    CHECK(one.reduce == "of0");
    CHECK(one.bytes_per_device == 1200);
  }
}

TEST_CASE("rounds: a variant that fails has a note and no figures, and its program is killed") {
  const FakePrograms fakes;
  fakes.add("pytorch_step.py", "say ready");
  fakes.add("bench_step", R"sh(
name=${1#name=} n=0
case $name in
  absent) say absent 'reason=no such library'; exit;;
  error) say error 'message=bad shape'; exit 1;;
  ends) printf 'a warning\nout of memory\n \t\n' >&2; exit 3;;
  mute) exit;;
esac
case "$*" in *--save-inputs*) saves=', saves the inputs';; esac
log "$name starts$saves"
say ready
while read -r command; do
  n=$((n + 1))
  case $name$n in warmup1 | second3) say error "message=failed in run $n"; continue;; esac
  say done seconds=0.5
done
log "$name ends"
)sh");
  progress.clear();
  VariantSpec left_out = variant("left out");
  left_out.absent = "it requires GPUs";
  const StepResult result =
      measure_steps(two_rounds(),
                    {left_out, variant("torch", {}, "pytorch"), variant("absent"), variant("error"), variant("ends"),
                     variant("mute"), variant("a"), variant("warmup"), variant("b"), variant("second")},
                    tell);
  Lines notes;
  for (const Measured& one : result.variants) {
    notes.push_back(one.note);
    CHECK(one.seconds_per_step.size() == (one.note.empty() ? 2 : 0));
  }
  CHECK(notes == Lines{"it requires GPUs",
                       "PyTorch variants read their inputs from a dp variant; add one to --variants", "no such library",
                       "bad shape", "bench_step ended: out of memory", "bench_step ended: it printed no message", "",
                       "failed in run 1", "", "failed in run 3"});
  CHECK(fakes.log() ==
        Lines{"a starts, saves the inputs", "warmup starts", "b starts", "second starts", "a ends", "b ends"});
  REQUIRE(progress.size() == 11);
  CHECK(progress.front() == "starting title of torch");
  CHECK(progress[9] == "round 1 of 2, ms/step: a 250.0 b 250.0 second 250.0");
  CHECK(progress[10] == "round 2 of 2, ms/step: a 250.0 b 250.0");
}

TEST_CASE("rounds: a variant with a different loss is rejected, with a larger tolerance for mixed precision") {
  CHECK(notes_of({variant("first", {"start_loss=-1", "check_loss=2"}), variant("near", {"start_loss=-1.0009"}),
                  variant("far", {"start_loss=-1.0011"}), variant("silent"), variant("nan", {"start_loss=nan"}),
                  variant("later", {"check_loss=2.0018"}), variant("late", {"check_loss=1.9978"}),
                  variant("amp", {"--amp", "start_loss=-1.009"}), variant("far amp", {"--amp", "start_loss=-1.011"}),
                  variant("torch", {"start_loss=-1.0011", "check_loss=2"}, "pytorch")}) ==
        Lines{"measured", "measured", "result differs from the other variants: start_loss -1.0011, expected -1.000000",
              "measured", "measured", "measured",
              "result differs from the other variants: check_loss 1.9978, expected 2.000000", "measured",
              "result differs from the other variants: start_loss -1.011, expected -1.000000",
              "result differs from the other variants: start_loss -1.0011, expected -1.000000"});
}

TEST_CASE("rounds: losses of variants that compute something else are not compared") {
  VariantSpec micro = variant("micro", {"check_loss=9", "batch_norm=1"}),
              whole = variant("whole", {"check_loss=9", "batch_norm=0"});
  micro.accumulates = whole.accumulates = true;
  const std::string differs = "result differs from the other variants: check_loss 9, expected 2.000000";
  CHECK(notes_of({variant("first", {"start_loss=1", "check_loss=2"}),
                  variant("torch", {"start_loss=1", "check_loss=9"}, "pytorch"),  // its third step has other dropout
                  variant("norm", {"check_loss=9", "batch_norm=1"}, "dp", 2), micro, whole,
                  variant("one norm", {"check_loss=9", "batch_norm=1"}),
                  variant("replicas", {"check_loss=9", "batch_norm=0"}, "dp", 2)}) ==
        Lines{"measured", "measured", "measured", "measured", differs, differs, differs});
  // A rank evaluates its own shard.
  const FakePrograms fakes;
  fakes.add("bench_step", R"sh(
case "$*" in *"--rank 0"*) say listening port=1;; esac
case "$*" in *--rank*) loss=9;; *) loss=1;; esac
say ready start_loss=$loss
while read -r command; do say done seconds=1; done
)sh");
  const StepResult result =
      measure_steps(two_rounds(), {variant("one"), variant("ranks", {}, "ddp", 2, 2), variant("again")}, tell);
  for (const Measured& one : result.variants) CHECK(one.note.empty());
}

TEST_CASE("rounds: PyTorch gets the inputs of dp, its threads and cores, and one rendezvous address per variant") {
  const FakePrograms fakes;
  fakes.add("bench_step", R"sh(
for last; do :; done
printf weights > "$last"
say ready parameter_bytes=400 version:oneDNN=3.1 version:compiler=GNU
while read -r command; do say done seconds=1; done
)sh");
  fakes.add("pytorch_step.py", R"sh(
for last; do :; done
log "$* has $(cat "$last"): $OMP_NUM_THREADS $OPENBLAS_NUM_THREADS $RANK $LOCAL_RANK $WORLD_SIZE" \
    "${OMP_PROC_BIND-free} ${OMP_PLACES-anywhere}"
printf '%s %s\n' "$1" "$DP_BENCH_RENDEZVOUS" >> "$folder/rendezvous"
[ "$DP_BENCH_RENDEZVOUS" != "$last" ] && [ -e "$DP_BENCH_RENDEZVOUS" ] || exit 1
say ready parameter_bytes=999 version:torch=2.1 version:compiler=GNU
while read -r command; do say done seconds=1; done
)sh");
  StepOptions options = two_rounds();
  options.rounds = 1;
  options.python = "/bin/sh";
  const std::vector<int>& cores = dp::process_cores();
  const auto places = [&](std::size_t from, std::size_t to) {
    if (cores.size() < 2) return std::string("free anywhere");
    std::string text;
    for (std::size_t i = from; i < to; ++i) text += (i > from ? ",{" : "{") + std::to_string(cores[i]) + "}";
    return "true " + text;
  };
  const auto measured_log = [&] {
    std::filesystem::remove(fakes.path() + "/log");
    const StepResult result = measure_steps(
        options, {variant("dp"), variant("single", {}, "pytorch"), variant("ranks", {}, "pytorch", 2, 2)}, tell);
    for (const Measured& one : result.variants) {
      CHECK(one.note.empty());
      CHECK(one.parameter_bytes == 400);
    }
    CHECK(fact(result, "versions") == "compiler GNU, oneDNN 3.1, torch 2.1");
    Lines log = fakes.log();
    std::ranges::sort(log);
    return log;
  };
  CHECK(measured_log() == Lines{"name=ranks --inputs FILE has weights: 1 1 0 0 2 " + places(0, 1),
                                "name=ranks --inputs FILE has weights: 1 1 1 1 2 " + places(1, 2),
                                "name=single --inputs FILE has weights: 2 2 0 0 1 " + places(0, 2)});
  std::map<std::string, std::set<std::string>> meeting_points;
  std::set<std::string> different;
  for (const std::string& line : lines_of(read_text(fakes.path() + "/rendezvous"))) {
    const auto space = line.find(' ');
    meeting_points[line.substr(0, space)].insert(line.substr(space));
    different.insert(line.substr(space));
  }
  CHECK(meeting_points["name=ranks"].size() == 1);
  CHECK(different.size() == 2);

  const Lines unbound{"name=ranks --inputs FILE has weights: 50000 50000 0 0 2 free anywhere",
                      "name=ranks --inputs FILE has weights: 50000 50000 1 1 2 free anywhere",
                      "name=single --inputs FILE has weights: 100000 100000 0 0 1 free anywhere"};
  options.threads = 100000;  // more than there are cores
  CHECK(measured_log() == unbound);
  options.threads = 1;
  options.gpus = "0,1";
  CHECK(measured_log() == Lines{"name=ranks --inputs FILE has weights: 1 1 0 0 2 free anywhere",
                                "name=ranks --inputs FILE has weights: 1 1 1 1 2 free anywhere",
                                "name=single --inputs FILE has weights: 1 1 0 0 1 free anywhere"});
}

TEST_CASE("rounds: without --steps, a slice has as many steps as take --seconds, from 1 to 100,000") {
  const FakePrograms fakes;
  fakes.add("bench_step", R"sh(
name=${1#name=}
say ready
while read -r command; do
  log "$name $command"
  case $name in usual) say done seconds=0.8;; slow) say done seconds=40;; *) say done seconds=1e-6;; esac
done
)sh");
  StepOptions options = two_rounds();
  options.rounds = 1;
  options.steps = 0;
  options.seconds = 1.5;
  options.warmup = 4;
  measure_steps(options, {variant("usual"), variant("slow"), variant("quick")}, tell);
  CHECK(fakes.log() ==
        Lines{"usual run 4", "slow run 4", "quick run 4", "usual run 8", "slow run 1", "quick run 100000"});
}

// A slice of the measured program lasts until both others have used 0.1 s of processor time in it, however busy the
// machine is. Each of them makes a file after every 0.1 s, so the second file ends a whole 0.1 s.
TEST_CASE("rounds: the load of other processes and of waiting programs is reported separately") {
  const FakePrograms fakes;
  fakes.add("bench_step", R"sh(
if [ "$1" = name=long ]; then
  say ready
  while read -r command; do
    for file in other busy other busy; do
      rm -f "$folder/$file"
      while [ ! -e "$folder/$file" ]; do :; done
    done
    say done seconds=0.4
  done
  exit
fi
# Answers from another process and keeps a core busy meanwhile.
exec 3<&0
(say ready; while read -r command <&3; do say done seconds=0.001; done; kill -9 $$) &
next=10
while read -r stat < /proc/$$/stat; do
  set -- $stat
  [ $((${14} + ${15})) -lt $next ] && continue
  next=$((${14} + ${15} + 10))
  : > "$folder/busy"
done
)sh");
  StepOptions options = two_rounds();
  options.rounds = options.warmup = 1;
  std::atomic<bool> over{false};
  std::thread other([&] {  // this process is neither measured nor a waiting program
    const auto used = [] {
      timespec time{};
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    for (double next = 0.1; !over;) {
      if (used() < next) continue;
      next = used() + 0.1;
      write_text(fakes.path() + "/other", "");
    }
  });
  const StepResult result = measure_steps(options, {variant("long"), variant("busy")}, tell);
  over = true;
  other.join();
  for (const Measured& one : result.variants) CHECK(one.note.empty());
  const double others = std::stod(fact(result, "others_cores")), idle = std::stod(fact(result, "idle_programs_cores"));
  INFO(others << " and " << idle);
  CHECK(others > 0);
  CHECK(idle > 0);
  CHECK(others + idle <= 1.2 * static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN)));
}
