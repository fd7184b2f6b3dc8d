// Joins a process group, from the environment or over MPI, and exchanges messages in it.
#include <ifaddrs.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <net/if.h>
#include <netinet/in.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string_view>

#include "dp/process_group.h"
#include "engine/base/files.h"
#include "engine/process_group/connection.h"
#include "engine/process_group/coordinator.h"
#include "engine/process_group/process_group_state.h"
#include "kernels/comm/mpi/mpi_plugin.h"

namespace dp {
namespace {

// Process group options from the environment: torchrun's variables and DP_TOKEN.

std::string_view value_of(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? std::string_view() : text;
}

int number_in(const char* name, int lowest, int highest) {
  const std::string_view text = value_of(name);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || number < lowest || number > highest)
    throw Error(ErrorCode::usage, std::string("RANK is set, but ") + name + " is '" + std::string(text) +
                                      "', not a number from " + std::to_string(lowest) + " to " +
                                      std::to_string(highest));
  return number;
}

}  // namespace

std::optional<ProcessGroupOptions> process_group_from_environment() {
  if (value_of("RANK").empty()) {
    if (!value_of("WORLD_SIZE").empty() && value_of("WORLD_SIZE") != "1")
      throw Error(ErrorCode::usage, "WORLD_SIZE is '" + std::string(value_of("WORLD_SIZE")) +
                                        "', but RANK is not set; set both, or neither");
    return std::nullopt;
  }
  constexpr int kMostRanks = 4096;
  ProcessGroupOptions options;
  options.size = number_in("WORLD_SIZE", 1, kMostRanks);
  options.rank = number_in("RANK", 0, options.size - 1);
  const std::string_view address = value_of("MASTER_ADDR"), token = value_of("DP_TOKEN");
  if (address.empty() && options.size > 1)
    throw Error(ErrorCode::usage, "RANK is set, but MASTER_ADDR is not; set it to the address of rank 0");
  if (!address.empty()) options.address = address;
  if (options.size > 1) options.port = number_in("MASTER_PORT", 1, 65534);
  // Torchrun's agent listens on MASTER_PORT itself.
  if (value_of("TORCHELASTIC_USE_AGENT_STORE") == "True") ++options.port;
  // "none" is torchrun's run id by default.
  const std::string_view run_id =
      value_of("TORCHELASTIC_RUN_ID") == "none" ? std::string_view() : value_of("TORCHELASTIC_RUN_ID");
  const bool here = options.address == "127.0.0.1" || options.address == "localhost" || options.address == "::1";
  if (options.size > 1 && !here && token.empty() && run_id.empty())
    throw Error(ErrorCode::usage,
                "MASTER_ADDR is '" + options.address +
                    "', which other hosts can reach: a shared secret is required; set DP_TOKEN to the "
                    "same text for every rank");
  options.token = token.empty() ? run_id : token;
  if (!value_of("DP_LISTENER").empty() && options.rank == 0) options.listener = number_in("DP_LISTENER", 0, 1 << 20);
  return options;
}

// Process group options for ranks that mpirun or srun started. MPI provides rank and size, and broadcasts rank 0's
// address, port and token.

namespace {

bool is_set(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr && *text != '\0';
}

bool all_on_one_host(int size) {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"})
    if (is_set(name)) return std::atoi(std::getenv(name)) == size;
  return false;
}

// The first IPv4 address of an active interface other than loopback, or 127.0.0.1.
std::string outward_address() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return "127.0.0.1";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    char text[INET_ADDRSTRLEN] = "";
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text, sizeof text);
    return text;
  }
  return "127.0.0.1";
}

}  // namespace

bool started_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (is_set(name)) return true;
  return false;
}

std::optional<ProcessGroupOptions> process_group_from_mpi() {
  if (!started_by_mpi()) return std::nullopt;
  kernels::Mpi* const mpi = kernels::mpi_plugin();
  if (mpi == nullptr)
    throw Error(ErrorCode::usage, "this process was started by mpirun, but " + kernels::mpi_reason() +
                                      "; start the ranks with --engine ddp alone, or with torchrun");
  mpi->start();
  ProcessGroupOptions options;
  options.rank = mpi->rank();
  options.size = mpi->size();
  options.mpi = true;
  if (options.size == 1) return options;
  std::string mine;
  FileHandle listener;
  if (options.rank == 0) {
    const char* const named = std::getenv("MASTER_ADDR");
    options.address = is_set("MASTER_ADDR")           ? named
                      : all_on_one_host(options.size) ? std::string("127.0.0.1")
                                                      : outward_address();
    listener = process_group::listen_on(options.address, 0);
    mine =
        options.address + " " + std::to_string(process_group::port_of(listener)) + " " + process_group::drawn_token();
  }
  std::istringstream text(mpi->broadcast(mine));
  text >> options.address >> options.port >> options.token;
  options.listener = listener.release();
  return options;
}

using process_group::Connection;
using process_group::Failure;
using process_group::Hello;
using process_group::Kind;
using process_group::Message;

namespace {

constexpr std::size_t kLongestAnswer = std::size_t{256} << 20;
constexpr double kAnswerWithin = 30;  // seconds; rank 0 answers at once
constexpr double kTry = 0.2;          // seconds; short, so that an interrupt is noticed

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "host";
}

// Processes with equal text have the same host, PID namespace and network namespace, so they can share memory.
std::string host_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::error_code error;
  const auto space = [&](const char* name) { return std::filesystem::read_symlink(name, error).string(); };
  return boot + space("/proc/self/ns/pid") + space("/proc/self/ns/net");
}

}  // namespace

ProcessGroup::State::State(const ProcessGroupOptions& o) : options(o), exceptions_(std::uncaught_exceptions()) {
  if (o.size < 1 || o.rank < 0 || o.rank >= o.size)
    throw Error(ErrorCode::usage, fmt::format("rank {} of {} does not exist; ranks count from 0", o.rank, o.size));
  if (o.size > 1) join();
}

// Connects to rank 0 and sends the Hello. Adds the waiting time to `waited`. Error(timeout) when that reaches `limit`.
void ProcessGroup::State::greet(int port, double limit, double& waited) {
  connection_.reset();
  while (!connection_) {
    const double left = std::min(kTry, limit - waited);
    try {
      connection_.emplace(process_group::connect_to(
          options.address, port,
          process_group::Clock::now() +
              std::chrono::duration_cast<process_group::Clock::duration>(std::chrono::duration<double>(left))));
    } catch (const Error& error) {
      waited += left;
      if (error.code() != ErrorCode::timeout || interrupted() || waited >= limit)
        throw Error(error.code(), fmt::format("rank {} of {}: {}", options.rank, options.size, error.what()));
    }
  }
  connection_->send(
      {Kind::hello, 0, to_text(Hello{options.token, options.rank, options.size, host_identity(), host_name()})});
  try {
    reader_ = process_group::start_thread("that listens to rank 0", [this] { read(); });
  } catch (const Error& error) {
    fail(error);
    throw;
  }
}

void ProcessGroup::State::join() {
  double waited = 0;  // seconds, without time in which the process was suspended
  int port = options.port;
  if (options.rank == 0) {
    FileHandle listener =
        options.listener >= 0 ? FileHandle(options.listener) : process_group::listen_on(options.address, options.port);
    port = process_group::port_of(listener);
    coordinator_ = std::make_unique<process_group::Coordinator>(std::move(listener), options);
  }
  greet(port, options.timeout_seconds, waited);
  std::unique_lock lock(mutex_);
  // Rank 0 enforces the timeout. If rank 0 ends, an accepted rank fails at once. Another one tries to connect until
  // `answer_by`.
  const double answer = std::min(kAnswerWithin, options.timeout_seconds), answer_by = waited + answer;
  std::string answered = fmt::format("did not answer within {:g} s", answer);
  while (!time_.wait(lock, changed_, kTry, [this] { return welcome_ || failure_; })) {
    if (interrupted()) end_by({Failure::kNobody, Error(ErrorCode::timeout, "interrupted while ranks were missing")});
    waited += kTry;
    if (!accepted_ && waited >= answer_by) end_by(not_rank_0(ErrorCode::timeout, answered));
    if (waited > options.timeout_seconds + 5) end_by({0, Error(ErrorCode::timeout, "it did not accept this rank")});
    if (dropped_ && !failure_) {
      answered = "closed the connection without an answer";
      lock.unlock();
      reader_.join();
      dropped_ = false;
      greet(port, answer_by, waited);
      lock.lock();
    }
  }
  if (!welcome_) {  // the first call reports a failure after the welcome
    const ErrorCode code = failure_->error.code();
    const std::string why = to_sentence(*failure_);
    lock.unlock();
    wake_.raise();
    reader_.join();
    throw Error(code, fmt::format("rank {} of {} could not join: {}", options.rank, options.size, why));
  }
  lock.unlock();
  const std::string& own = ranks[static_cast<std::size_t>(options.rank)].host;
  local_size_ = 0;
  for (int rank = 0; rank < options.size; ++rank) {
    if (rank == options.rank) local_rank_ = local_size_;
    local_size_ += ranks[static_cast<std::size_t>(rank)].host == own;
  }
}

ProcessGroup::State::~State() {
  leave();
  // After a failure MPI would wait for the other ranks, perhaps for ever.
  if (options.mpi && !failure_ && !failed_ && std::uncaught_exceptions() <= exceptions_)
    kernels::mpi_plugin()->finish();
}

void ProcessGroup::State::leave() {
  if (!connection_ || !reader_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    leaving_ = true;
    if (std::uncaught_exceptions() > exceptions_ && !failure_)
      connection_->send(
          {Kind::fail, 0, to_text(Failure{options.rank, Error(ErrorCode::device, "an exception ended its training")})});
    connection_->send({Kind::bye});
  }
  coordinator_.reset();  // waits for `bye` of the other ranks
  wake_.raise();
  reader_.join();
}

void ProcessGroup::State::read() {
  ::pthread_setname_np(::pthread_self(), "messages");
  while (true) {
    std::array<pollfd, 2> watched{{{connection_->descriptor(), POLLIN, 0}, {wake_.descriptor(), POLLIN, 0}}};
    {
      const std::scoped_lock lock(mutex_);
      if (connection_->unsent()) watched[0].events |= POLLOUT;
    }
    ::poll(watched.data(), watched.size(), -1);
    if (watched[1].revents != 0) {
      const std::scoped_lock lock(mutex_);
      wake_.clear();
      if (leaving_ || failure_) {
        connection_->flush();
        return;
      }
    }
    bool open = true;
    try {
      {
        const std::scoped_lock lock(mutex_);
        connection_->flush();
        open = connection_->read(kLongestAnswer);
      }
      while (const auto message = connection_->next(kLongestAnswer)) take(*message);
    } catch (const std::exception&) {
      return lose(/*closed=*/false);
    }
    if (!open) return lose(/*closed=*/true);
  }
}

// Rank 0 may drop a connection before it answers, if a crowd of strangers connects. The rank then connects again.
void ProcessGroup::State::lose(bool closed) {
  const std::scoped_lock lock(mutex_);
  if (leaving_ || failure_) return;
  const std::string lost =
      options.rank == 0 ? "rank 0 lost the connection to itself"
                        : fmt::format("rank {} lost its connection to rank 0 (was rank 0 killed?)", options.rank);
  if (accepted_ || welcome_)
    end_all_by({Failure::kNobody, Error(ErrorCode::device, lost)});
  else if (closed)
    dropped_ = true;
  else
    end_by(not_rank_0(ErrorCode::device, "sent what no rank 0 sends"));
}

void ProcessGroup::State::take(const Message& message) {
  const std::scoped_lock lock(mutex_);
  switch (message.kind) {
    case Kind::refused: end_by({Failure::kNobody, Error(ErrorCode::usage, message.body)}); break;
    case Kind::accepted: accepted_ = true; break;
    case Kind::rejected:
      if (options.rank != 0) std::fprintf(stderr, "dp: warning: %s\n", excerpt(message.body, 1024).c_str());
      break;
    case Kind::welcome:
      for (const std::string& hello : process_group::split(message.body))
        ranks.push_back(process_group::parse_hello(hello));
      if (ranks.size() != static_cast<std::size_t>(options.size)) throw std::runtime_error("a truncated welcome");
      welcome_ = true;
      break;
    case Kind::everyone: results_[message.number] = process_group::split(message.body); break;
    case Kind::fail: end_by(process_group::parse_failure(message.body)); break;
    case Kind::roll: send({Kind::here, message.number}); break;
    case Kind::busy: ++put_off_; break;
    case Kind::silent:
      silent_.emplace();
      for (const std::string& rank : process_group::split(message.body)) silent_->push_back(std::stoi(rank));
      break;
    default: throw std::runtime_error("an unexpected message");
  }
  changed_.notify_all();
}

// The connection exists, but no rank 0 answers on it.
Failure ProcessGroup::State::not_rank_0(ErrorCode code, const std::string& what) const {
  return {Failure::kNobody,
          Error(code, fmt::format("what listens at {}:{} {}: rank 0 has ended, or another program uses this port (see "
                                  "rank 0's message); choose another --master-port",
                                  options.address, options.port, what))};
}

void ProcessGroup::State::end_by(const Failure& failure) {
  if (!failure_) failure_ = failure;
  for (kernels::AbortFlag* flag : flags_) flag->store(true, std::memory_order_release);
  changed_.notify_all();
}

void ProcessGroup::State::end_all_by(const Failure& failure) {
  send({Kind::fail, 0, to_text(failure)});
  end_by(failure);
}

void ProcessGroup::State::send(const Message& message) {
  connection_->send(message);
  if (connection_->unsent()) wake_.raise();
}

std::uint64_t ProcessGroup::State::give(std::string_view mine) {
  if (mine.size() > process_group::kLongestPart)
    throw Error(ErrorCode::usage, fmt::format("{} bytes exceed the limit of an exchange", mine.size()));
  const std::uint64_t number = given_++;
  const std::scoped_lock lock(mutex_);
  if (options.size == 1)
    results_[number] = {std::string(mine)};
  else
    send({Kind::give, number, std::string(mine)});
  return number;
}

std::vector<std::string> ProcessGroup::State::wait(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  // Rank 0 enforces the timeout; this limit covers a stopped rank 0. It counts one-second waits, so that time in which
  // this process was suspended does not count.
  const double patience = options.timeout_seconds + std::max(0.75 * options.timeout_seconds, 3.0);
  double waited = 0;
  int put_off = put_off_;
  while (waited < patience && !time_.wait(lock, changed_, 1, [&] { return failure_ || results_.contains(number); })) {
    waited = put_off == put_off_ ? waited + 1 : 0;
    put_off = put_off_;
  }
  if (waited >= patience) end_all_by({0, Error(ErrorCode::timeout, fmt::format("it sent nothing for {:g} s", waited))});
  if (results_.contains(number)) return std::move(results_.extract(number).mapped());
  rethrow();
}

bool ProcessGroup::State::agree(bool wish) {
  const auto before = std::exchange(vote_, give(wish ? "1" : "0"));
  if (!before) return false;
  const std::vector<std::string> wishes = wait(*before);
  return std::find(wishes.begin(), wishes.end(), "1") != wishes.end();
}

void ProcessGroup::State::busy(bool is) {
  const std::scoped_lock lock(mutex_);
  if (connection_ && !failure_) send({Kind::busy, is ? 1u : 0u});
}

void ProcessGroup::State::fail(const Error& error) {
  const std::scoped_lock lock(mutex_);
  if (failure_ || !connection_) return;
  failed_ = true;
  send({Kind::fail, 0, to_text(Failure{options.rank, error})});
}

void ProcessGroup::State::rethrow() const { throw Error(failure_->error.code(), to_sentence(*failure_)); }

std::optional<Error> ProcessGroup::State::failure() {
  const std::scoped_lock lock(mutex_);
  if (!failure_ || failure_->rank == options.rank) return std::nullopt;
  return Error(failure_->error.code(), to_sentence(*failure_));
}

std::vector<int> ProcessGroup::State::silent_ranks() {
  std::unique_lock lock(mutex_);
  if (failure_ || !connection_) return {};
  silent_.reset();
  send({Kind::roll});
  time_.wait(lock, changed_, 1, [this] { return silent_ || failure_; });
  if (failure_) return {};
  return silent_.value_or(std::vector<int>{0});
}

void ProcessGroup::State::attach(kernels::AbortFlag* flag) {
  const std::scoped_lock lock(mutex_);
  flags_.push_back(flag);
  if (failure_) flag->store(true, std::memory_order_release);
}

void ProcessGroup::State::detach(kernels::AbortFlag* flag) {
  const std::scoped_lock lock(mutex_);
  std::erase(flags_, flag);
}

ProcessGroup::ProcessGroup(std::unique_ptr<State> state) : state_(std::move(state)) {}
ProcessGroup::~ProcessGroup() = default;

std::shared_ptr<ProcessGroup> ProcessGroup::join(const ProcessGroupOptions& options) {
  return std::shared_ptr<ProcessGroup>(new ProcessGroup(std::make_unique<State>(options)));
}

int ProcessGroup::rank() const { return state_->rank(); }
int ProcessGroup::size() const { return state_->size(); }
int ProcessGroup::local_rank() const { return state_->local_rank(); }
int ProcessGroup::local_size() const { return state_->local_size(); }
bool ProcessGroup::one_host() const { return state_->one_host(); }
std::string ProcessGroup::host_of(int rank) const {
  return size() == 1 ? host_name() : state_->ranks.at(static_cast<std::size_t>(rank)).name;
}
std::vector<std::string> ProcessGroup::exchange(std::string_view mine) { return state_->exchange(mine); }
bool ProcessGroup::agree(bool wish) { return state_->agree(wish); }
void ProcessGroup::busy(bool is) { state_->busy(is); }
void ProcessGroup::fail(const Error& error) { state_->fail(error); }
std::optional<Error> ProcessGroup::failure() const { return state_->failure(); }

}  // namespace dp
