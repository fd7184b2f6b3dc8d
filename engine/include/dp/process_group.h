// The processes that train one network together, one device each: rendezvous and control messages.
//
// Rank 0 listens on a TCP port; all ranks connect to it, from any host. Gradients use a communicator instead: see Comm.
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
  std::string address = "127.0.0.1";  // of rank 0, which listens on this address only
  int port = 0;
  std::string token{};                     // secret of the run: a rank with another one is rejected
  double timeout_seconds = 300;            // waiting time for a missing rank, when joining and in every exchange
  int listener = -1;                       // rank 0: a listening socket, owned by the group from then on; -1: opens one
  const std::atomic<int>* stop = nullptr;  // non-zero: joining ends with Error(timeout)
  bool mpi = false;                        // MPI was started for the group, which finalises it
};

// Options from RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and DP_TOKEN (or TORCHELASTIC_RUN_ID), as torchrun or
// launch_ranks() sets them; empty without RANK. If torchrun's agent listens on MASTER_PORT, the next port is used.
// Error(usage) for a variable that is missing or not a number, or if other hosts can reach MASTER_ADDR and there is no
// token.
std::optional<ProcessGroupOptions> process_group_from_environment();

// Options from MPI, which this call starts; empty if neither mpirun nor srun started this process. Error(usage) if the
// MPI plugin is missing.
std::optional<ProcessGroupOptions> process_group_from_mpi();
bool started_by_mpi();

class ProcessGroup {
 public:
  // Returns when every rank has joined. Error(timeout) names the missing ranks; Error(usage) if rank 0 rejects this
  // one.
  static std::shared_ptr<ProcessGroup> join(const ProcessGroupOptions& options);
  // Leaves the group. During exception unwinding it reports that this rank failed. On rank 0 it waits until all ranks
  // have left.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const;
  int size() const;
  bool leads() const { return rank() == 0; }  // rank 0 logs and saves
  int local_rank() const;                     // among the ranks on this host
  int local_size() const;
  bool one_host() const;
  std::string host_of(int rank) const;  // host name, for messages

  // All-gather of strings: returns each rank's `mine` in rank order, at most 64 KiB each. All ranks must make the same
  // calls in the same order. Throws the error with which another rank failed, or Error(timeout), which names the
  // missing ranks.
  std::vector<std::string> exchange(std::string_view mine);
  std::string from_first(std::string_view mine) { return exchange(mine).front(); }
  // Returns whether any rank passed true in the previous call: the same answer on every rank. It waits for the votes of
  // the previous call only, which have usually arrived.
  bool agree(bool wish);

  // Between busy(true) and busy(false) this rank may exceed the timeout before it enters an exchange; the other ranks
  // wait.
  void busy(bool is);

  // Reports that this rank failed: waiting calls of every rank end with this error. Print the error first, so that the
  // cause precedes its consequences. Only the first failure in a group is reported.
  void fail(const Error& error);
  // The failure of another rank, if any, as an error of this one.
  std::optional<Error> failure() const;

  struct State;
  State& state() { return *state_; }  // used by the engine

 private:
  explicit ProcessGroup(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dp
