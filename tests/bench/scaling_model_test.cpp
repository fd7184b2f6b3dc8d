// Compares the scaling model of GPUs with the output of the reference dp_model.py (dp_model.out), and tests how the
// model of a CPU server scales.
#include "apps/dp_bench/model/scaling_model.h"
#include "apps/dp_bench/model/cpu_model.h"
#include "apps/dp_bench/model/roofline.h"

#include <cmath>
#include <cstdlib>
#include <map>
#include <regex>

#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace dp_bench;

namespace {

struct Case {
  const Hardware* hardware = nullptr;
  int batch = 0;
  bool weak = false;
};

// Parses a heading: "### 8xH200 NVSwitch; strong, global batch 256 (...)"
Case case_of(const std::string& heading) {
  const std::map<std::string, std::size_t> names{
      {"8xH200 NVSwitch", 0}, {"H200, PCIe5 only", 1}, {"4x2080Ti PCIe3, no P2P", 2}};
  static const std::regex form(R"(### (.*); (strong, global batch (\d+)|weak, (\d+) per GPU) \(.*)");
  std::smatch match;
  REQUIRE(std::regex_match(heading, match, form));
  const bool weak = match[4].matched;
  return {&known_hardware().at(names.at(match[1])), std::stoi(match[weak ? 4 : 3]), weak};
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream parts(line.substr(1));
  for (std::string cell; std::getline(parts, cell, '|');) cells.push_back(cell);
  return cells;
}

}  // namespace

TEST_CASE("the scaling model gives the reference's figures") {
  const std::map<std::string, Strategy> strategies{{" star P2P copies to/from the master ", Strategy::star},
                                                   {" naive DP (reduce+bcast, no overlap) ", Strategy::naive},
                                                   {" DP bucketed, overlapped ", Strategy::master},
                                                   {" sharded RS+AG, overlapped ", Strategy::sharded},
                                                   {" DDP all-reduce, overlapped ", Strategy::ddp}};
  Case now;
  int compared = 0;
  for (const std::string& line : dp::test::lines_of(dp::test::read_text(DP_GOLDEN_MODEL))) {
    if (line.starts_with("### ")) now = case_of(line);
    if (!line.starts_with("|") || now.hardware == nullptr) continue;
    const std::vector<std::string> cells = cells_of(line);
    const auto strategy = strategies.find(cells.front());
    if (strategy == strategies.end()) continue;
    int n = 2, each = 0;
    double seconds = 0;
    for (std::size_t i = 1; i + 1 < cells.size(); ++i, n *= 2) {
      INFO(now.hardware->name << " batch " << now.batch << " n " << n << cells.front());
      each = now.weak ? now.batch : now.batch / n;
      seconds = step_seconds(*now.hardware, n, each, strategy->second);
      const double alone = step_seconds(*now.hardware, 1, now.batch, Strategy::naive);
      CHECK(std::abs(seconds * 1e3 - std::stod(cells[i])) <= 0.00501);
      const double efficiency = 100 * alone / seconds / (now.weak ? 1 : n);
      CHECK(std::abs(efficiency - std::stod(cells[i].substr(cells[i].find('(') + 1))) <= 0.501);
      ++compared;
    }
    CHECK(std::abs(50000.0 / (each * n / 2) * seconds - std::stod(cells.back())) <= 0.00501);
  }
  CHECK(compared == 5 * (4 * 3 + 2));
}

TEST_CASE("an update in separate passes moves twelve bytes a parameter more than a fused one") {
  for (const Fusion fusion : {Fusion::fused_norm, Fusion::eager}) {
    const Work work = resnet18_cifar(1, fusion);
    CHECK(work.update.bytes == (fusion == Fusion::eager ? 34 : 22) * work.parameters());
  }
}

TEST_CASE("several hosts cost the time of the network between them") {
  const Hardware& hardware = known_hardware().front();
  const double one = step_seconds(hardware, 8, 256, Strategy::ddp),
               again = step_seconds(hardware, 8, 256, Strategy::ddp, {1, 1e9, 1});
  const double two = step_seconds(hardware, 8, 256, Strategy::ddp, {2, 12.5e9, 30e-6});
  const double eight = step_seconds(hardware, 8, 256, Strategy::ddp, {8, 12.5e9, 30e-6});
  const double wider = step_seconds(hardware, 8, 256, Strategy::ddp, {8, 50e9, 30e-6});
  CHECK(one == again);
  CHECK(one < two);
  CHECK(two < eight);
  CHECK(wider < eight);
}

TEST_CASE("on a CPU server convolutions scale with the cores, passes with the bandwidth, and the exchange not at all") {
  CpuServer server{"a server", 64, 200e9, 10e9, 80e9, 0};
  const CpuStep one = step_of(server, 1, 64), eight = step_of(server, 8, 64), all = step_of(server, 64, 64);
  CHECK(eight.convolutions == Approx(one.convolutions));  // eight cores share nothing
  CHECK(eight.passes == Approx(one.passes));
  CHECK(all.passes == Approx(8 * one.passes));  // a core has an eighth of its bandwidth
  CHECK(step_of(server, 1, 128).passes == Approx(2 * one.passes));
  CHECK(step_of(server, 8, 128).exchange == Approx(eight.exchange));
  // The network has 11.2 million parameters. One replica makes five passes over them. Each of eight replicas reads all
  // of them twice, and makes four passes over an eighth of them.
  CHECK(one.exchange == Approx(5 * 4 * 11.22e6 / 10e9).epsilon(0.01));
  CHECK(eight.exchange == Approx((2 + 4.0 / 8) * 4 * 11.22e6 / 10e9).epsilon(0.01));
  server.call_seconds = 1e-3;
  CHECK(step_of(server, 8, 64).exchange > eight.exchange + 0.01);
  CHECK(step_of(server, 1, 64).exchange == one.exchange);
  CHECK(one.total() == one.convolutions + one.passes + one.exchange);
}
