// Several hosts: two network namespaces joined by a virtual link, with ranks in each.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "process_group/rank_programs.h"
#include "support/temporary_folder.h"

using namespace dp::test;

namespace {

bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

// Two namespaces, 10.213.7.1 and 10.213.7.2, during its lifetime.
class TwoHosts {
 public:
  TwoHosts() : tag_(std::to_string(::getpid() % 10000)) {
    made_ =
        run("ip netns add " + name(0)) && run("ip netns add " + name(1)) &&
        run("ip link add dpa" + tag_ + " netns " + name(0) + " type veth peer name dpb" + tag_ + " netns " + name(1));
    for (int host = 0; host < 2 && made_; ++host) {
      const std::string in = "ip netns exec " + name(host) + " ip ", device = (host ? "dpb" : "dpa") + tag_;
      made_ = run(in + "addr add " + address(host) + "/24 dev " + device) && run(in + "link set " + device + " up") &&
              run(in + "link set lo up");
    }
  }
  ~TwoHosts() {
    for (int host = 0; host < 2; ++host) run("ip netns del " + name(host));
  }
  bool made() const { return made_; }
  std::string name(int host) const { return "dp" + tag_ + (host ? "b" : "a"); }
  static std::string address(int host) { return "10.213.7." + std::to_string(host + 1); }

 private:
  std::string tag_;
  bool made_ = false;
};

std::string ip_program() {
  for (const char* path : {"/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"})
    if (std::filesystem::exists(path)) return path;
  return "";
}

}  // namespace

TEST_CASE("hosts: mpirun starts ranks on two hosts, which use MPI, and only rank 0's host writes files") {
  const std::string mpirun = mpirun_program();
  if (mpirun.empty()) DP_SKIP("mpirun or the MPI plugin is not here");
  const TwoHosts hosts;
  if (!hosts.made()) DP_SKIP("there is no right to make network namespaces");
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  // What mpirun uses in place of ssh: agent <address> <command>...
  const std::string agent = folder / "agent";
  std::ofstream(agent) << "#!/bin/sh\ncase $1 in " << TwoHosts::address(0) << ") host=" << hosts.name(0)
                       << ";; *) host=" << hosts.name(1) << ";; esac\nshift\nexec " << ip_program()
                       << " netns exec $host sh -c \"$*\"\n";
  std::filesystem::permissions(agent, std::filesystem::perms::owner_all);
  const std::string network = "10.213.7.0/24";
  const Outcome outcome =
      Program(short_run(folder / "run") + Words{"--cpu", "2"}, folder.path(),
              mpi_environment() + Words{"OMPI_MCA_plm_rsh_agent=" + agent, "OMPI_MCA_oob_tcp_if_include=" + network,
                                        "OMPI_MCA_btl_tcp_if_include=" + network, "OMPI_MCA_btl=tcp,self"},
              Words{ip_program(), "netns", "exec", hosts.name(0), mpirun, "-np", "4", "--host",
                    TwoHosts::address(0) + ":2," + TwoHosts::address(1) + ":2"})
          .wait();
  INFO(outcome.err << outcome.out);
  CHECK(outcome.code == 0);
  const auto summary = summary_in(folder / "run");
  char name[256] = {};
  REQUIRE(::gethostname(name, sizeof name) == 0);
  CHECK(summary["devices"] == std::vector<std::string>(4, std::string(name) + " cpu"));
  CHECK(summary["communicator"] == "mpi");
  CHECK(summary["communicator_reason"] == "the ranks run on several hosts and were started by MPI");
}

TEST_CASE("hosts: CPU ranks on two hosts that MPI did not start are refused") {
  const TwoHosts hosts;
  if (!hosts.made()) DP_SKIP("there is no right to make network namespaces");
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  const std::string port = free_port();
  std::vector<Program> nodes;
  for (int host = 0; host < 2; ++host)
    nodes.emplace_back(
        short_run(folder / "run") + Words{"--cpu", "1", "--nnodes", "2", "--node-rank", std::to_string(host),
                                          "--master-addr", TwoHosts::address(0), "--master-port", port},
        folder.path(), Words{"DP_TOKEN=between the two of us"}, Words{ip_program(), "netns", "exec", hosts.name(host)});
  for (int host = 0; host < 2; ++host) {
    const Outcome outcome = nodes[static_cast<std::size_t>(host)].wait();
    INFO("host " << host << ": " << outcome.err);
    CHECK(outcome.code == 2);
    CHECK(outcome.err.find("start them with mpirun") != std::string::npos);
  }
}

TEST_CASE("hosts: a rank without the run's token is rejected") {
  const TwoHosts hosts;
  if (!hosts.made()) DP_SKIP("there is no right to make network namespaces");
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  const std::string port = free_port();
  const Words arguments = short_run(folder.path() + "/run");
  std::vector<Program> nodes;
  for (int host = 0; host < 2; ++host)
    nodes.emplace_back(arguments + Words{"--cpu", "1", "--nnodes", "2", "--node-rank", std::to_string(host),
                                         "--master-addr", TwoHosts::address(0), "--master-port", port},
                       folder.path(), Words{host ? "DP_TOKEN=guessed" : "DP_TOKEN=right"},
                       Words{ip_program(), "netns", "exec", hosts.name(host)});
  const Outcome second = nodes[1].wait();
  INFO(second.err);
  CHECK(second.code == 2);
  CHECK(second.err.find("its token differs from rank 0's") != std::string::npos);
  const std::string waits = "; still waiting for rank";  // for rank 0 itself, too, if it is slow
  CHECK_THAT(nodes[0].wait_for_error(waits), Catch::Contains("rank 0 rejected rank 1 of 2") && Catch::Contains(waits));
  ::kill(nodes[0].id(), SIGINT);
  CHECK(nodes[0].wait().code == 130);
}
