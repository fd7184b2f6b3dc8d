// Strangers at rank 0's port, before ranks join and while they join.
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <deque>
#include <filesystem>
#include <string>
#include <thread>

#include "dp/error.h"
#include "engine/process_group/connection.h"
#include "engine/process_group/coordinator.h"
#include "process_group/rank_programs.h"
#include "support/temporary_folder.h"

using namespace dp::test;

namespace {

namespace group = dp::process_group;

constexpr int kMembers = 3;
const std::string kToken = "xylophone";

// Connects to the port again and again, in four threads, until it is destroyed.
class Attack {
 public:
  explicit Attack(int port) : port_(port) {
    for (int kind = 0; kind < static_cast<int>(counts.size()); ++kind)
      threads_.emplace_back([this, kind] { run(kind); });
  }
  ~Attack() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  void wait_for(int connections) const {
    for (const std::atomic<int>& count : counts) CHECK(becomes([&] { return count >= connections; }));
  }
  std::array<std::atomic<int>, 4> counts{};  // connections: idle, garbage, another token, half a greeting

 private:
  void run(int kind) {
    constexpr std::size_t kOpen = 150;  // at once
    std::deque<group::Connection> open;
    while (!over_) {
      try {
        open.emplace_back(group::connect_to("127.0.0.1", port_, group::Clock::now()));
      } catch (const dp::Error&) {  // rank 0 does not listen yet, or no longer
        continue;
      }
      const int file = open.back().descriptor();
      const std::string hello = to_text(group::Hello{"guessed", 1, kMembers, "", "stranger"});
      if (kind == 1) send_text(file, std::string(20000, static_cast<char>(counts[1] % 256)));
      if (kind == 2) open.back().send({group::Kind::hello, 0, hello});
      if (kind == 3) send_text(file, std::string(4, '\0') + hello.substr(0, 9));
      ++counts[static_cast<std::size_t>(kind)];
      if (open.size() > kOpen) open.pop_front();
    }
  }
  static void send_text(int file, const std::string& text) {
    ::send(file, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  const int port_;
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

// The digest of the final weights. `connections`: of each kind, before the second rank starts and before the third one;
// 0: no attack.
std::string trained(int connections) {
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  const std::string port = free_port();
  std::optional<Attack> attack;
  std::vector<Program> ranks;
  for (int rank = 0; rank < kMembers; ++rank) {
    ranks.emplace_back(short_run("run") + Words{"--cpu", "1"}, folder.path(),
                       rank_variables(rank, kMembers, port, kToken));
    if (rank == 0) CHECK(becomes([&] { return is_connected(std::stoi(port)); }));
    if (rank == 0 && connections > 0) attack.emplace(std::stoi(port));
    if (attack && rank < 2) attack->wait_for((rank + 1) * connections);
  }
  for (int rank = 0; rank < kMembers; ++rank) {
    const Outcome outcome = ranks[static_cast<std::size_t>(rank)].wait();
    INFO("rank " << rank << ": " << outcome.err);
    CHECK(outcome.code == 0);
    CHECK(outcome.err.find("error") == std::string::npos);
    CHECK((outcome.out + outcome.err).find(kToken) == std::string::npos);
  }
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder / "run"))
    if (file.is_regular_file()) CHECK(read_text(file.path()).find(kToken) == std::string::npos);
  if (attack)
    WARN("connections: " << attack->counts[0] << " idle, " << attack->counts[1] << " with garbage, "
                         << attack->counts[2] << " with another token, " << attack->counts[3]
                         << " with half a greeting");
  return summary_in(folder / "run")["weights_sha256"];
}

}  // namespace

TEST_CASE("attack: idle, garbage and forged connections keep no rank out, change no bit and show no token") {
  CHECK(trained(300) == trained(0));
}
