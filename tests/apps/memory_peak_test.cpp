// The memory that `dp_train estimate-memory` states against the peak of the process (getrusage) that it is stated for.
#include <cmath>
#include <sstream>

#include "apps/run_program.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp::test;

struct Case {
  const char* words;
  bool emulates = false;  // mixed precision on any processor
};

Words split(const std::string& text) {
  std::istringstream stream(text);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

double stated_mebibytes(const std::string& out) {
  const std::string label = "  in all";
  const std::size_t end = out.find(label);
  REQUIRE(end != std::string::npos);
  return std::stod(out.substr(out.rfind('\n', end) + 1));
}

void check_peak(const std::string& run, const std::string& until, const Words& variables) {
  const TemporaryFolder temp;
  const Outcome estimate = Program(split("estimate-memory " + run), temp.path(), variables).wait();
  const Outcome trained = Program(split(run + until + " --output-dir run"), temp.path(), variables).wait();
  INFO(run << "\n" << estimate.out << estimate.err << trained.err);
  REQUIRE(estimate.code == 0);
  REQUIRE(trained.code == 0);
  const double stated = stated_mebibytes(estimate.out);
  const double peak = static_cast<double>(trained.peak_bytes) / (1 << 20);
  INFO("stated " << stated << " MiB, peak " << peak << " MiB, ratio " << peak / stated);
  CHECK(std::abs(peak - stated) <= (peak > 100 ? 0.1 * peak : 5));
}

// Of random images.
void check_peak_of_two_steps(const std::string& words, const Words& variables = {}) {
  check_peak(words + " --dataset synthetic --threads-per-replica 1 --images 1200", " --max-steps 2", variables);
}

TEST_CASE("the stated memory of mnist_convnet is within 10 % of its peak", "[processes]") {
  check_peak_of_two_steps("--model mnist_convnet --cpu 1 -b 64");
}

TEST_CASE("the stated memory of a process is within 10 % of its peak above 100 MiB, and 5 MiB below", "[nightly]") {
  for (const Case& one :
       {Case{"--model mlp --cpu 1"}, Case{"--model mnist_convnet --cpu 2 -b 256"},
        Case{"--model mnist_convnet --cpu 2 -b 256 --amp", true},
        Case{"--model mnist_convnet --cpu 2 -b 256 --pipeline-stages 2"},
        Case{"--model resnet18 --input 3,32,32 --cpu 1 -b 32"}, Case{"--model resnet18 --input 3,32,32 --cpu 2 -b 32"},
        Case{"--model mnist_convnet --cpu 2 -b 128 --optimizer adamw --model-ema"}})
    check_peak_of_two_steps(one.words, one.emulates ? Words{"DP_EMULATE_BF16=1"} : Words{});
}

// Drawn digits are cached: 52 MiB.
TEST_CASE("the stated memory of an epoch of digits is within 10 % of its peak", "[nightly]") {
  check_peak("--model mnist_convnet --dataset digits --cpu 1 -b 500 --threads-per-replica 1", " --epochs 1", {});
}

}  // namespace
