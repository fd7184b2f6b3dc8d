#include <algorithm>

#include "apps/dp_bench/child.h"
#include "apps/dp_bench/step.h"
#include "dp/device.h"
#include "dp/error.h"
#include "support/catch.h"
#include "support/patience.h"

using namespace dp_bench;

namespace {

using Lines = std::vector<std::string>;

const double kLongest = 60 + static_cast<double>(dp::test::kPatience.count());  // seconds; no answer takes as long

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
  CHECK_THROWS_WITH(Child({"/no/such/program"}, {}).read(kLongest), Catch::Contains("No such file"));
  CHECK_THROWS_WITH(Child({"/bin/sh", "-c", "echo a >&2; echo the reason >&2; exit 3"}, {}).read(kLongest),
                    Catch::Contains("the reason"));
  CHECK_THROWS_WITH(Child({"/bin/sh", "-c", "printf 'error\\tmessage=out of luck\\n'"}, {}).read(kLongest),
                    Catch::Contains("out of luck"));
  CHECK_THROWS_WITH(Child({"/bin/cat"}, {}).read(0.05), Catch::Contains("did not answer"));
}

TEST_CASE("measured programs receive no OpenMP settings but their own") {
  ::setenv("OMP_PLACES", "sockets", 1);
  Child child({"/bin/sh", "-c", "printf 'ready\\tplaces=%s\\tthreads=%s\\n' \"$OMP_PLACES\" \"$OMP_NUM_THREADS\""},
              {"OMP_NUM_THREADS=3"});
  const Reply reply = child.read(kLongest);
  ::unsetenv("OMP_PLACES");
  CHECK(reply.text("places").empty());
  CHECK(reply.text("threads") == "3");
}

TEST_CASE("every variant gets the network, the devices and the threads, and only dp's variants all other options") {
  const auto lines_of = [](const StepOptions& options) {
    std::vector<std::string> lines;
    for (const VariantSpec& spec : variants_for(options)) {
      CHECK_FALSE(spec.accumulates);
      std::string line = spec.key + " | " + spec.title + " | " + spec.group + " " + std::to_string(spec.devices) + " " +
                         std::to_string(spec.processes) + " " + spec.absent + "|";
      for (const std::string& word : spec.arguments) line += " " + word;
      lines.push_back(line);
    }
    return lines;
  };
  StepOptions options;
  options.network = {"mlp", {1, 6, 7}, 9};
  options.replicas = 2;
  options.threads = 4;
  options.batches = 7;
  options.images_on = "device";
  std::string net = "| --model mlp --input 1,6,7 --classes 9 --batch 64 --batches 7 --images-on device ";
  CHECK(
      lines_of(options) ==
      Lines{"plan | bare plan | plan 1 1 " + net + "--cpu 1 --threads 4 --variant plan",
            "dp1 | dp x1 | dp 1 1 " + net + "--cpu 1 --threads 4 --variant dp",
            "dp-sharded | dp x2 sharded | dp 2 1 " + net + "--cpu 2 --threads 2 --variant dp --reduce sharded",
            "dp-master | dp x2 master | dp 2 1 " + net + "--cpu 2 --threads 2 --variant dp --reduce master",
            "dp-allreduce | dp x2 allreduce | dp 2 1 " + net + "--cpu 2 --threads 2 --variant dp --reduce allreduce",
            "ddp | ddp x2 | ddp 2 2 " + net + "--cpu 2 --threads 2 --variant ddp",
            "torch | PyTorch | pytorch 1 1 " + net + "--variant single --memory-format contiguous --threads 4",
            "torch-cl | PyTorch channels_last | pytorch 1 1 " + net +
                "--variant single --memory-format channels_last --threads 4",
            "torch-dp | PyTorch nn.DataParallel x2 | pytorch 2 1 nn.DataParallel requires GPUs" + net +
                "--variant dataparallel --memory-format channels_last --threads 4",
            "torch-ddp | PyTorch DDP x2 | pytorch 2 2 " + net + "--variant ddp --memory-format contiguous --threads 2",
            "torch-ddp-cl | PyTorch DDP x2 channels_last | pytorch 2 2 " + net +
                "--variant ddp --memory-format channels_last --threads 2"});
  options.inference = true;
  CHECK(lines_of(options) ==
        Lines{"dp1 | dp x1 | dp 1 1 " + net + "--inference --cpu 1 --threads 4 --variant dp",
              "dp | dp x2 | dp 2 1 " + net + "--inference --cpu 2 --threads 2 --variant dp",
              "torch | PyTorch | pytorch 1 1 " + net +
                  "--inference --variant single --memory-format contiguous --threads 4",
              "torch-cl | PyTorch channels_last | pytorch 1 1 " + net +
                  "--inference --variant single --memory-format channels_last --threads 4",
              "torch-compiled | PyTorch channels_last compiled | pytorch 1 1 " + net +
                  "--inference --variant single --memory-format channels_last --threads 4 --compile"});

  options.inference = false;
  options.gpus = "4,16,7";
  options.replicas = 3;
  options.threads = 2;
  options.replicas_per_device = 2;
  options.run.parallel.amp = dp::Amp::float16;
  options.run.parallel.exact_convolutions = true;
  net += "--amp fp16 ";
  const std::string three = "--gpus 4,16,7", one = "--gpus 4";
  CHECK(
      lines_of(options) ==
      Lines{"plan | bare plan | plan 1 1 " + net + one + " --variant plan --exact-conv",
            "dp1 | dp x1 | dp 1 1 " + net + one + " --variant dp --exact-conv",
            "dp-sharded | dp x3 sharded | dp 3 1 " + net + three + " --variant dp --exact-conv --reduce sharded",
            "dp-master | dp x3 master | dp 3 1 " + net + three + " --variant dp --exact-conv --reduce master",
            "dp-allreduce | dp x3 allreduce | dp 3 1 " + net + three + " --variant dp --exact-conv --reduce allreduce",
            "dp-virtual | dp x3, 2 replicas each | dp 3 1 " + net + three +
                " --variant dp --exact-conv --replicas-per-device 2",
            "ddp | ddp x3 | ddp 3 3 " + net + three + " --variant ddp --exact-conv",
            "torch | PyTorch | pytorch 1 1 " + net + "--variant single --memory-format contiguous --threads 2 " + one,
            "torch-cl | PyTorch channels_last | pytorch 1 1 " + net +
                "--variant single --memory-format channels_last --threads 2 " + one,
            "torch-compiled | PyTorch channels_last compiled | pytorch 1 1 " + net +
                "--variant single --memory-format channels_last --threads 2 " + one + " --compile",
            "torch-reduce | PyTorch channels_last reduce-overhead | pytorch 1 1 " + net +
                "--variant single --memory-format channels_last --threads 2 " + one + " --compile reduce-overhead",
            "torch-dp | PyTorch nn.DataParallel x3 | pytorch 3 1 " + net +
                "--variant dataparallel --memory-format channels_last --threads 2 " + three,
            "torch-ddp | PyTorch DDP x3 | pytorch 3 3 " + net +
                "--variant ddp --memory-format contiguous --threads 1 " + three,
            "torch-ddp-cl | PyTorch DDP x3 channels_last | pytorch 3 3 " + net +
                "--variant ddp --memory-format channels_last --threads 1 " + three});
  options.replicas_per_device = 1;
  options.run.parallel.amp = dp::Amp::bfloat16;
  const std::vector<VariantSpec> plain = variants_for(options);
  CHECK(std::none_of(plain.begin(), plain.end(), [](const VariantSpec& spec) { return spec.key == "dp-virtual"; }));
  CHECK(amp_words(options.run) == Lines{"--amp", "bf16"});
  CHECK(amp_words({}).empty());
}

TEST_CASE("step options: automatic threads and batches, and the refusals with their remedies") {
  StepOptions options;
  options.replicas = 2;
  options.threads = 3;
  CHECK_THROWS_WITH(resolved(options), "--threads 3 is not a multiple of the 2 replicas; give a multiple of --cpu");
  options.threads = 2;
  options.run.batch_size = 1;
  CHECK_THROWS_WITH(resolved(options), "-b 1 is less than the 2 replicas; give at least one image per replica");
  options.run.batch_size = 2;
  CHECK(resolved(options).batches == 512);
  options.run.batch_size = 64;
  CHECK(resolved(options).batches == (96 << 20) / (4 * 64 * 28 * 28));
  options.run.batch_size = 100000;
  CHECK(resolved(options).batches == 4);
  options.batches = 3;
  CHECK(resolved(options).batches == 3);
  options.variants = {"dp1", "horovod"};
  CHECK_THROWS_WITH(variants_for(resolved(options)),
                    "--variants: 'horovod' is not available here; choose from plan, dp1, dp-sharded, dp-master, "
                    "dp-allreduce, ddp, torch, torch-cl, torch-dp, torch-ddp, torch-ddp-cl");
  const int cores = dp::available_cores().cores;
  options.threads = 0;
  CHECK(resolved(options).threads == std::max(1, cores / 2) * 2);
  options.replicas = 1;
  CHECK(resolved(options).threads == cores);
  options.replicas = 7 * cores;
  CHECK(resolved(options).threads == 7 * cores);
}
