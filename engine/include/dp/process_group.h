// The processes that train one network together, each with a device of its own: who they are, and where they meet.
//
// Rank 0 listens; the others, wherever they run, come to it. What carries gradients is not this: see Comm.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dp/error.h"

namespace dp {

struct ProcessGroupOptions {
  int rank = 0, size = 1;
  std::string address = "127.0.0.1";  // of rank 0, which listens there and nowhere else
  int port = 0;
  std::string token{};           // the run's secret: a rank that comes with another one is turned away
  double timeout_seconds = 300;  // how long a missing rank is waited for, when joining and at every exchange
  int listener = -1;             // rank 0: a socket that listens already, the world's from then on; -1: it makes one
  const std::atomic<int>* stop = nullptr;  // non-zero: joining is given up with Error(timeout)
  bool mpi = false;                        // MPI was started for it, and ends with it
};

// What torchrun, or whoever started this process as one of several, says in RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and
// DP_TOKEN; nothing without RANK. Under torchrun's own store the port is MASTER_PORT + 1. Error(usage) for what is
// missing or no number.
std::optional<ProcessGroupOptions> process_group_from_environment();

// What mpirun or srun says through MPI, which is started for it; nothing when neither started this process. Error(usage) when MPI's
// plugin is missing.
std::optional<ProcessGroupOptions> process_group_from_mpi();
bool started_by_mpi();

class ProcessGroup {
 public:
  // Returns when every rank is there. Error(timeout) naming the missing ones, Error(usage) when rank 0 turns this one away.
  static std::shared_ptr<ProcessGroup> join(const ProcessGroupOptions& options);
  // Says goodbye, or, when an exception is on its way, that this rank failed. On rank 0 waits for the others to do so.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const;
  int size() const;
  bool leads() const { return rank() == 0; }  // the one that logs and saves
  int local_rank() const;                     // among the ranks on this host
  int local_size() const;
  bool one_host() const;
  std::string host_of(int rank) const;  // a name for a person

  // What each rank gave, in rank order, at most 64 KiB each. All ranks make the same calls in the same order. Throws what another
  // rank failed with, or Error(timeout) naming the ranks that did not come.
  std::vector<std::string> exchange(std::string_view mine);
  std::string from_first(std::string_view mine) { return exchange(mine).front(); }
  // Whether any rank wished so in the call before this one: the same answer everywhere, without waiting for anybody.
  bool agree(bool wish);

  // Between busy(true) and busy(false) this rank may take longer than the timeout to come to an exchange; the others wait.
  void busy(bool is);

  // Ends the world: every rank's waits end with this error. Say it to the user first, so that the cause precedes its
  // consequences. Only the first failure of a world counts.
  void fail(const Error& error);
  // What another rank failed with, as an error of this one.
  std::optional<Error> failure() const;

  struct State;
  State& state() { return *state_; }  // for the engine

 private:
  explicit ProcessGroup(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dp
