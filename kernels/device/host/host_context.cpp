#include "kernels/device/host/host_context.h"

#include <omp.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels/device/host/cores.h"
#include "kernels/device/host/host_stream.h"
#include "kernels/device/host/memory.h"
#include "kernels/device/host/shared_memory.h"

namespace dp::kernels {
namespace {

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> made{0};
  return ++made;
}

// OpenMP ends the process if it cannot start its threads. Hence start as many std::threads first as a test. Then start
// the team, which stays with the calling thread.
void start_team(int members) {
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  std::atomic<bool> done{false};
  std::vector<std::thread> trial;
  std::string refused;
  try {
    while (static_cast<int>(trial.size()) < members - 1) trial.emplace_back([&] { done.wait(false); });
    require_address_space(0);
  } catch (const std::system_error& error) {
    refused = "only " + std::to_string(trial.size() + 1) + " of the " + std::to_string(members) +
              " threads of a replica could be started (" + error.code().message() +
              "); use fewer threads or replicas, or raise ulimit -u and -v";
  } catch (const Error& error) {
    refused = error.what();
  }
  done.store(true);
  done.notify_all();
  for (std::thread& thread : trial) thread.join();
  if (!refused.empty()) throw Error(ErrorCode::device, refused);
  start_current_team(members);
}

}  // namespace

HostContext::HostContext(Device device, const ContextOptions& options)
    : device_(device),
      options_(options),
      stacks_(std::max(options.threads, 1) - 1),
      id_(next_id()),
      group_(options.abort),
      inline_streams_(group_) {
  if (options.threads < 1) throw Error(ErrorCode::usage, "a replica needs at least one thread");
  if (!options.cores.empty() && options.cores.size() != static_cast<std::size_t>(options.threads))
    throw Error(ErrorCode::usage, "a replica of " + std::to_string(options.threads) + " threads cannot be pinned to " +
                                      std::to_string(options.cores.size()) + " cores; give one core per thread");
}

void HostContext::bind_thread() {
  static thread_local std::uint64_t bound = 0;
  if (bound == id_) return;
  omp_set_dynamic(0);
  omp_set_num_threads(options_.threads);
  if (options_.threads > 1) start_team(options_.threads);
  pin_current_team(options_.cores);
  bound = id_;
}

std::unique_ptr<Buffer> HostContext::allocate(std::size_t bytes) { return allocate_host(bytes); }

std::unique_ptr<Buffer> HostContext::allocate_for_peers(std::size_t bytes) {
  return options_.peer_processes ? allocate_shared(bytes) : allocate_host(bytes);
}

std::unique_ptr<Stream> HostContext::make_stream(StreamUse) {
  ++streams_made_;
  if (!options_.threaded_streams) return std::make_unique<InlineStream>(group_, inline_streams_);
  return std::make_unique<ThreadedStream>(group_, options_.delay_seed * 0x10001 + streams_made_, options_.threads);
}

std::unique_ptr<Event> HostContext::make_event() { return std::make_unique<HostEvent>(); }

bool HostContext::idle() {
  // In threaded mode another thread may still run work. Only inline streams can confirm that all work is done.
  return !options_.threaded_streams && inline_streams_.idle();
}

void HostContext::flush() {
  if (options_.threaded_streams)
    group_.rethrow_if_failed();
  else
    inline_streams_.work_off();
}

}  // namespace dp::kernels
