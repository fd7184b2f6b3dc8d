// Several hosts: two network namespaces joined by a virtual link, with ranks in each.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "process_group/rank_programs.h"
#include "support/temporary_folder.h"

using namespace dp::test;

namespace {

bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

// Two network namespaces, 10.213.7.1 and 10.213.7.2, during its lifetime. They are in a user namespace if the system
// allows one; then no privileges are needed.
class TwoHosts {
 public:
  TwoHosts() : rootless_(run("unshare -Urn true")) {
    const Words user = rootless_ ? Words{"/usr/bin/unshare", "-Urn"} : Words{"/usr/bin/unshare", "-n"};
    if (!rootless_ && !run("unshare -n true")) return;
    hold(user);
    hold((rootless_ ? enter(0, /*network=*/false) : Words{}) + Words{"/usr/bin/unshare", "-n"});
    made_ = in(0, "ip link add link0 type veth peer name link1 netns " + std::to_string(holders_[1].id()));
    for (int host = 0; host < 2 && made_; ++host) {
      const std::string device = "link" + std::to_string(host);
      made_ = in(host, "ip addr add " + address(host) + "/24 dev " + device) &&
              in(host, "ip link set " + device + " up") && in(host, "ip link set lo up");
    }
  }
  // Ends what runs on them, such as daemons of mpirun.
  ~TwoHosts() {
    const auto network = [](const std::filesystem::path& process) {
      std::error_code gone;
      return std::filesystem::read_symlink(process / "ns/net", gone);
    };
    for (Program& holder : holders_) {
      const auto own = network("/proc/" + std::to_string(holder.id()));
      if (!own.empty() && own != network("/proc/self"))  // it is empty if the holder has ended
        for (const pid_t process : processes_with(""))
          if (network("/proc/" + std::to_string(process)) == own) ::kill(process, SIGKILL);
      ::kill(holder.id(), SIGKILL);
      holder.wait();
    }
  }
  bool made() const { return made_; }
  static std::string address(int host) { return kNetwork + std::to_string(host + 1); }
  // The words before a command on this host.
  Words enter(int host, bool network = true) const {
    Words words{"/usr/bin/nsenter", "-t", std::to_string(holders_[static_cast<std::size_t>(host)].id())};
    if (rootless_) words = words + Words{"-U", "--preserve-credentials"};
    return network ? words + Words{"-n"} : words;
  }
  bool in(int host, const std::string& command) const { return run(text_of(enter(host)) + command); }

  // mpirun on host 0, for this many ranks on each host. Writes the replacement of ssh into `folder`. mpirun calls it
  // inside the user namespace.
  Words mpirun(const std::string& folder, int ranks) const {
    const std::string agent = folder + "/agent", count = ":" + std::to_string(ranks);
    std::ofstream(agent) << "#!/bin/sh\ncase $1 in " << address(0) << ") host=" << holders_[0].id()
                         << ";; *) host=" << holders_[1].id()
                         << ";; esac\nshift\nexec /usr/bin/nsenter -t $host -n sh -c \"$*\"\n";
    std::filesystem::permissions(agent, std::filesystem::perms::owner_all);
    return enter(0) + Words{mpirun_program(), "-np", std::to_string(2 * ranks), "--host",
                            address(0) + count + "," + address(1) + count};
  }
  static Words mpi_variables(const std::string& folder) {
    return mpi_environment() + Words{"OMPI_MCA_plm_rsh_agent=" + folder + "/agent",
                                     "OMPI_MCA_oob_tcp_if_include=" + kNetwork + "0/24",
                                     "OMPI_MCA_btl_tcp_if_include=" + kNetwork + "0/24", "OMPI_MCA_btl=tcp,self"};
  }

 private:
  static inline const std::string kNetwork = "10.213.7.";

  static std::string text_of(const Words& words) {
    std::string text;
    for (const std::string& word : words) text += word + " ";
    return text;
  }
  // Starts a process that holds a namespace open.
  void hold(const Words& unshare) {
    Program& holder = holders_.emplace_back(Words{}, folder_.path(), Words{},
                                            unshare + Words{"/bin/sh", "-c", "exec sleep 600", "sh"});
    CHECK(becomes([&] { return read_text("/proc/" + std::to_string(holder.id()) + "/comm") == "sleep\n"; }));
  }

  const TemporaryFolder folder_;
  const bool rootless_;
  std::vector<Program> holders_;
  bool made_ = false;
};

constexpr const char* kNoNamespaces = "there is no right to make network namespaces";

}  // namespace

TEST_CASE("hosts: ranks that mpirun starts on two hosts use MPI") {
  const std::string mpirun = mpirun_program();
  if (mpirun.empty()) DP_SKIP("mpirun or the MPI plugin is not here");
  const TwoHosts hosts;
  if (!hosts.made()) DP_SKIP(kNoNamespaces);
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  const Outcome outcome = Program(short_run(folder / "run") + Words{"--cpu", "2"}, folder.path(),
                                  TwoHosts::mpi_variables(folder.path()), hosts.mpirun(folder.path(), 2))
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
  if (!hosts.made()) DP_SKIP(kNoNamespaces);
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  const std::string port = free_port();
  std::vector<Program> nodes;
  for (int host = 0; host < 2; ++host)
    nodes.emplace_back(
        short_run(folder / "run") + Words{"--cpu", "1", "--nnodes", "2", "--node-rank", std::to_string(host),
                                          "--master-addr", TwoHosts::address(0), "--master-port", port},
        folder.path(), Words{"DP_TOKEN=between the two of us"}, hosts.enter(host));
  for (int host = 0; host < 2; ++host) {
    const Outcome outcome = nodes[static_cast<std::size_t>(host)].wait();
    INFO("host " << host << ": " << outcome.err);
    CHECK(outcome.code == 2);
    CHECK(outcome.err.find("start them with mpirun") != std::string::npos);
  }
}

TEST_CASE("hosts: a rank without the run's token is rejected") {
  const TwoHosts hosts;
  if (!hosts.made()) DP_SKIP(kNoNamespaces);
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  const std::string port = free_port();
  const Words arguments = short_run(folder.path() + "/run");
  std::vector<Program> nodes;
  for (int host = 0; host < 2; ++host)
    nodes.emplace_back(arguments + Words{"--cpu", "1", "--nnodes", "2", "--node-rank", std::to_string(host),
                                         "--master-addr", TwoHosts::address(0), "--master-port", port},
                       folder.path(), Words{host ? "DP_TOKEN=guessed" : "DP_TOKEN=right"}, hosts.enter(host));
  const Outcome second = nodes[1].wait();
  INFO(second.err);
  CHECK(second.code == 2);
  CHECK(second.err.find("its token differs from rank 0's") != std::string::npos);
  const std::string waits = "; still waiting for rank";  // for rank 0 itself, too, if it is slow
  CHECK_THAT(nodes[0].wait_for_error(waits), Catch::Contains("rank 0 rejected rank 1 of 2") && Catch::Contains(waits));
  ::kill(nodes[0].id(), SIGINT);
  CHECK(nodes[0].wait().code == 130);
}

TEST_CASE("hosts: a rank that loses the rank of the other host ends and names it") {
  if (mpirun_program().empty()) DP_SKIP("mpirun or the MPI plugin is not here");
  for (const bool cut : {true, false}) {
    std::optional<TwoHosts> hosts(std::in_place);
    if (!hosts->made()) DP_SKIP(kNoNamespaces);
    const TemporaryFolder folder;
    write_tiny_mnist(folder.path());
    Words arguments = endless_run(folder / "run") + Words{"--cpu", "1"};
    value_of(arguments, "--timeout") = "5";
    const std::string errors = folder / "errors";
    const std::string script = "file=" + errors + ".$OMPI_COMM_WORLD_RANK; \"$@\" 2>$file; code=$?; " +
                               "echo status $code >>$file; exit $code";
    Program program(arguments, folder.path(), TwoHosts::mpi_variables(folder.path()),
                    hosts->mpirun(folder.path(), 1) + Words{"/bin/sh", "-c", script, "sh"});
    program.wait_for("Epoch: [1]");
    pid_t second = -1;
    for (const pid_t id : processes_with("--output-dir" + std::string(1, '\0') + folder / "run")) {
      const std::string process = "/proc/" + std::to_string(id);
      if (read_text(process + "/comm") == "dp_train\n" &&
          read_text(process + "/environ").find("OMPI_COMM_WORLD_RANK=1" + std::string(1, '\0')) != std::string::npos)
        second = id;
    }
    REQUIRE(second > 0);
    const auto begin = std::chrono::steady_clock::now();
    if (cut)
      CHECK(hosts->in(0, "ip link set link0 down"));
    else
      ::kill(second, SIGSTOP);
    const auto ends_and_names = [&](const std::string& rank, const std::string& other) {
      const std::string file = errors + "." + rank;
      CHECK(becomes([&] { return read_text(file).find("\nstatus ") != std::string::npos; }));
      CHECK_THAT(read_text(file),
                 Catch::Contains("rank " + other) && (Catch::EndsWith("status 4\n") || Catch::EndsWith("status 6\n")));
    };
    ends_and_names("0", "1");
    if (cut) ends_and_names("1", "0");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const std::string texts = read_text(errors + ".0") + read_text(errors + ".1");
    WARN((cut ? "link cut" : "rank 1 stopped") << ": ended within " << took.count() << " s:\n" << texts);
    hosts.reset();  // ends mpirun, which waits for its daemon on the other host
    program.wait();
  }
}
