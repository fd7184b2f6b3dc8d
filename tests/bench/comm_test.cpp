#include "apps/dp_bench/comm.h"

#include <cstdlib>

#include "bench/fake_programs.h"
#include "bench/shown_table.h"
#include "dp/error.h"
#include "support/catch.h"

using namespace dp_bench;
using dp::test::FakePrograms;
using dp::test::shown_table;
using Lines = std::vector<std::string>;

namespace {

Lines progress;
void tell(const std::string& line) { progress.push_back(line); }

}  // namespace

TEST_CASE("sizes are parsed as in nccl-tests") {
  CHECK(parse_bytes("-b", "8") == 8);
  CHECK(parse_bytes("-b", "4") == 4);
  CHECK(parse_bytes("-b", "5.75") == 5);
  CHECK(parse_bytes("-b", "1.5k") == 1536);
  CHECK(parse_bytes("-b", "1e11") == 1e11);
  CHECK(parse_bytes("-b", "64K") == 65536);
  CHECK(parse_bytes("-b", "128M") == 134217728);
  CHECK(parse_bytes("-b", "1g") == 1073741824);
  for (const char* bad : {"", "K", "8X", "8KB", "-8", "0", "3.9", "1e30", "nan", "inf", "900G"}) {
    INFO(bad);
    CHECK_THROWS_WITH(parse_bytes("-e", bad), "-e: '" + std::string(bad) +
                                                  "' is not a size from 4 bytes to 100 GB, such as 8, 64K, 128M or 1G");
  }
}

TEST_CASE("the bus bandwidth is the algorithm bandwidth times the factor of nccl-tests") {
  CHECK(bus_factor("all_reduce", 4) == 1.5);
  CHECK(bus_factor("reduce_scatter", 4) == 0.75);
  CHECK(bus_factor("all_gather", 4) == 0.75);
  CHECK(bus_factor("gather", 4) == 0.75);
  CHECK(bus_factor("broadcast", 4) == 1);
  CHECK(bus_factor("reduce", 4) == 1);
  CHECK(bus_factor("all_reduce", 2) == 1);
  CHECK(collective_names() == Lines{"all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather",
                                    "all_gather_parts", "gather", "scatter"});
}

TEST_CASE("comm: the options are passed to the programs, and every result is a row with bandwidths") {
  const FakePrograms fakes;
  const std::string answers = R"sh(
say row collective=all_reduce ranks=4 count=100000000 type=float redop=sum root=-1 wrong=0 'seconds=0.001 0.003 0.002'
say other collective=gather
say row collective=gather ranks=4 count=100000000 type=float redop=none root=2 wrong=5 'seconds=0.004'
)sh";
  fakes.add("bench_comm",
            "log \"$*\"; case \"$*\" in *'--rank 1'*) exit;; *--port*) say listening port=77;; esac\n" + answers);
  fakes.add("mpirun",
            "log \"mpirun $* $OMPI_ALLOW_RUN_AS_ROOT $OMPI_ALLOW_RUN_AS_ROOT_CONFIRM "
            "$OMPI_MCA_rmaps_base_oversubscribe $OMPI_MCA_hwloc_base_binding_policy\"\n" +
                answers);
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", (fakes.path() + ":" + path).c_str(), 1);
  CommOptions options;
  options.begin = 16;
  options.end = 65536;
  options.factor = 2.5;
  options.ranks = 2;
  options.threads = 3;
  options.rounds = 4;
  options.seconds = 0.0125;
  options.collectives = {"all_reduce", "gather"};
  progress.clear();
  const Report report = measure_comm(options, tell);
  ::setenv("PATH", path.c_str(), 1);
  CHECK(progress ==
        Lines{"measuring host, threads of one process", "measuring host, processes", "measuring mpi, processes"});
  const auto words = [](const std::string& communicator) {
    return "--begin 16 --end 65536 --factor 2.500 --rounds 4 --seconds 0.0125 --threads 3 --comm " + communicator +
           " --cpu 2 --collectives all_reduce,gather";
  };
  CHECK(fakes.log() == Lines{words("host"), words("host") + " --rank 0 --ranks 2 --port 0",
                             words("host") + " --rank 1 --ranks 2 --port 77",
                             "mpirun -np 2 FOLDER/bench_comm " + words("mpi") + " --ranks 2 1 1 1 none"});
  CHECK(report.command == "comm");
  CHECK(report.title == "Collectives between 2 ranks on the CPU");
  REQUIRE(report.facts.size() == 2);
  CHECK(report.facts[0] ==
        std::pair<std::string, std::string>{"columns",
                                            "as in nccl-tests; in-place calls only; time: mean over the ranks of "
                                            "back-to-back calls, median of 4 rounds"});
  CHECK(report.facts[1].first == "bus");
  REQUIRE(report.sections.size() == 3);
  const Lines keys{"host", "host-processes", "mpi"},
      titles{"host, threads of one process", "host, processes", "mpi, processes"};
  for (std::size_t i = 0; i < 3; ++i) {
    const Section& section = report.sections[i];
    CHECK(section.key == keys[i]);
    CHECK(section.title == titles[i]);
    CHECK(shown_table(section) ==
          Lines{"collective size count type redop root time time_q1 time_q3 algbw busbw wrong",
                "collective | size (B) | count | type | redop | root | time (us) | quartile | quartile | "
                "algbw (GB/s) | busbw (GB/s) | #wrong",
                "all_reduce | 400000000 | 100000000 | float | sum | -1 | 2000.00 | 1500.00 | 2500.00 | 200.00 | "
                "300.00 | 0",
                "gather | 400000000 | 100000000 | float | none | 2 | 4000.00 | 4000.00 | 4000.00 | 100.00 | 75.00 | "
                "5"});
    CHECK(section.rows.at(0).samples == std::vector<double>{0.001, 0.003, 0.002});
  }
}

TEST_CASE("comm: a failed program has a row with its error or its last message") {
  CommOptions options;
  options.ranks = 2;
  options.communicators = {"host-processes", "host"};
  const auto rows = [&](const std::string& script) {
    const FakePrograms fakes;
    fakes.add("bench_comm", "log \"$*\"\n" + script);
    const Report report = measure_comm(options, tell);
    REQUIRE(report.sections.size() == 2);
    CHECK(report.sections[0].key == "host");
    CHECK(fakes.log().at(0) ==
          "--begin 8 --end 134217728 --factor 2.000 --rounds 5 --seconds 0.0200 --threads 1 --comm host --cpu 2");
    Lines shown = shown_table(report.sections[0]);
    shown.erase(shown.begin(), shown.begin() + 2);
    return shown;
  };
  const std::string empty =
      "host, threads of one process | none | none | none | none | none | none | none | none | none | none | none | "
      "not run: ";
  CHECK(rows("say error 'message=no memory'; echo ignored >&2; exit 1") == Lines{empty + "no memory"});
  CHECK(rows("echo 'no cores' >&2; exit 2") == Lines{empty + "bench_comm failed: no cores"});
  CHECK(rows("kill -9 $$") == Lines{empty + "bench_comm failed: it printed no message"});
  CHECK(rows("say error 'message=only a warning'").empty());
}

TEST_CASE("comm: a smallest size above the largest and unknown communicators are refused") {
  CommOptions options;
  options.ranks = 2;
  options.begin = 1024;
  options.end = 1024;
  options.communicators = {"host", "nccl"};
  CHECK_THROWS_WITH(measure_comm(options, tell),
                    "--communicators: 'nccl' is not available here; choose from host, host-processes, mpi");
  options.end = 1023;
  CHECK_THROWS_WITH(measure_comm(options, tell), "-b is greater than -e; give the smaller size as -b");
}
