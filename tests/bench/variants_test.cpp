#include <algorithm>

#include "apps/dp_bench/child.h"
#include "apps/dp_bench/step.h"
#include "dp/error.h"
#include "support/catch.h"

using namespace dp_bench;

namespace {

std::vector<std::string> keys_of(const StepOptions& options) {
  std::vector<std::string> keys;
  for (const VariantSpec& spec : variants_for(resolved(options))) keys.push_back(spec.key);
  return keys;
}

Measured measured(const std::string& key, const std::string& group, int devices, std::vector<double> seconds) {
  Measured one;
  one.spec.key = one.spec.title = key;
  one.spec.group = group;
  one.spec.devices = devices;
  one.seconds_per_step = std::move(seconds);
  one.parameter_bytes = 1e6;
  one.reduce = "sharded";
  return one;
}

double number(const Row& row, std::size_t column) { return std::get<double>(row.cells.at(column)); }

}  // namespace

TEST_CASE("variants cover every reduction, the bare plan, the multi-process engine and PyTorch") {
  StepOptions options;
  options.replicas = 2;
  CHECK(keys_of(options) == std::vector<std::string>{"plan", "dp1", "dp-sharded", "dp-master", "dp-allreduce", "ddp",
                                                     "torch", "torch-cl", "torch-dp", "torch-ddp", "torch-ddp-cl"});
  options.replicas = 1;
  CHECK(keys_of(options) == std::vector<std::string>{"plan", "dp1", "torch", "torch-cl"});
  options.variants = {"torch", "plan"};
  CHECK(keys_of(options) == std::vector<std::string>{"plan", "torch"});
  options.variants = {"horovod"};
  CHECK_THROWS_AS(keys_of(options), dp::Error);
}

TEST_CASE("a given number of CPU replicas is kept, and too few GPUs mean two of them") {
  std::string gpus;
  int count = 5;
  choose_devices(gpus, count, 1);
  CHECK(gpus.empty());
  CHECK(count == 5);
  count = 0;
  choose_devices(gpus, count, 100000);
  CHECK(gpus.empty());
  CHECK(count == 2);
}

TEST_CASE("all variants share the same number of threads") {
  StepOptions options;
  options.replicas = 2;
  options.threads = 4;
  for (const VariantSpec& spec : variants_for(resolved(options))) {
    const auto at = std::find(spec.arguments.begin(), spec.arguments.end(), "--threads");
    REQUIRE(at != spec.arguments.end());
    const int shares = spec.group == "pytorch" ? spec.processes : spec.devices;
    CHECK(std::stoi(*(at + 1)) * shares == 4);
  }
  options.threads = 3;
  CHECK_THROWS_AS(resolved(options), dp::Error);
  options.threads = 0;
  options.replicas = 3;
  CHECK(resolved(options).threads % 3 == 0);
}

TEST_CASE("devices send twice all but one share of the gradient in every reduction") {
  CHECK(bytes_sent(100, 1) == 0);
  CHECK(bytes_sent(100, 4) == 600);
  CHECK(bytes_sent_by_one(100, 4, "allreduce") == 150);
  CHECK(bytes_sent_by_one(100, 4, "sharded") == 150);
  CHECK(bytes_sent_by_one(100, 4, "master") == 300);
}

TEST_CASE("the report has medians, quartiles, ratios by round, and the reason for each missing row") {
  StepResult result;
  result.options = resolved(StepOptions{.replicas = 2});
  result.options.goals = true;
  result.options.run.batch_size = 64;
  result.variants = {measured("dp-sharded", "dp", 2, {0.010, 0.012, 0.011}),
                     measured("ddp", "ddp", 2, {0.020, 0.012, 0.022}), measured("torch", "pytorch", 1, {})};
  result.variants.back().note = "PyTorch is not installed";
  const Report report = step_report(result);
  REQUIRE(report.sections.size() == 2);
  const std::vector<Row>& rows = report.sections[0].rows;
  REQUIRE(rows.size() == 3);
  CHECK(number(rows[0], 1) == Approx(11));
  CHECK(number(rows[0], 2) == Approx(10.5));
  CHECK(number(rows[0], 3) == Approx(11.5));
  CHECK(number(rows[0], 6) == Approx(64 / 0.011));
  CHECK(number(rows[0], 8) == Approx(2));
  CHECK(rows[2].kind == Kind::absent);
  CHECK(remark(rows[2]) == "not run: PyTorch is not installed");
  REQUIRE(report.sections[1].rows.size() == 1);
  CHECK(std::get<std::string>(report.sections[1].rows[0].cells[0]) == "ddp / dp-sharded");
  CHECK(number(report.sections[1].rows[0], 1) == Approx(2));  // the median of 2, 1 and 2
  CHECK(std::get<std::string>(report.sections[1].rows[0].cells.back()) == "yes");
}

TEST_CASE("a measured program's line is a word and fields") {
  const Reply reply = parse_reply("done\tseconds=1.5e-3\tnote=a=b c\tempty=");
  CHECK(reply.word == "done");
  CHECK(reply.number("seconds") == 0.0015);
  CHECK(reply.text("note") == "a=b c");
  CHECK(reply.text("nothing").empty());
  CHECK(std::isnan(reply.number("note")));
  CHECK(std::isnan(reply.number("empty")));
}

TEST_CASE("a program that is missing, fails or stays silent is an error with its last output") {
  CHECK_THROWS_WITH(Child({"/no/such/program"}, {}).read(5), Catch::Contains("No such file"));
  CHECK_THROWS_WITH(Child({"/bin/sh", "-c", "echo a >&2; echo the reason >&2; exit 3"}, {}).read(5),
                    Catch::Contains("the reason"));
  CHECK_THROWS_WITH(Child({"/bin/sh", "-c", "printf 'error\\tmessage=out of luck\\n'"}, {}).read(5),
                    Catch::Contains("out of luck"));
  CHECK_THROWS_WITH(Child({"/bin/sleep", "1"}, {}).read(0.05), Catch::Contains("did not answer"));
}

TEST_CASE("measured programs receive no OpenMP settings but their own") {
  ::setenv("OMP_PLACES", "sockets", 1);
  Child child({"/bin/sh", "-c", "printf 'ready\\tplaces=%s\\tthreads=%s\\n' \"$OMP_PLACES\" \"$OMP_NUM_THREADS\""},
              {"OMP_NUM_THREADS=3"});
  const Reply reply = child.read(5);
  ::unsetenv("OMP_PLACES");
  CHECK(reply.text("places").empty());
  CHECK(reply.text("threads") == "3");
}
