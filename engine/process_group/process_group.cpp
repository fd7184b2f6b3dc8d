#include "dp/process_group.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>

#include "engine/base/fault.h"
#include "engine/process_group/process_group_state.h"
#include "engine/process_group/start_thread.h"
#include "kernels/mpi_plugin.h"

namespace dp {

using process_group::Connection;
using process_group::Failure;
using process_group::Hello;
using process_group::Kind;
using process_group::Message;

namespace {

constexpr std::size_t kLongestAnswer = std::size_t{256} << 20;
constexpr double kAnswerWithin = 30;  // seconds; rank 0 answers at once

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

void ProcessGroup::State::join() {
  constexpr double kTry = 0.2;  // seconds; short, so that an interrupt is noticed
  double waited = 0;            // seconds, without time in which the process was suspended
  int port = options.port;
  if (options.rank == 0) {
    FileHandle listener =
        options.listener >= 0 ? FileHandle(options.listener) : process_group::listen_on(options.address, options.port);
    port = process_group::port_of(listener);
    coordinator_ = std::make_unique<process_group::Coordinator>(std::move(listener), options);
  }
  while (!connection_) {
    const double left = std::min(kTry, options.timeout_seconds - waited);
    try {
      connection_.emplace(process_group::connect_to(
          options.address, port,
          process_group::Clock::now() +
              std::chrono::duration_cast<process_group::Clock::duration>(std::chrono::duration<double>(left))));
    } catch (const Error& error) {
      waited += left;
      if (error.code() != ErrorCode::timeout || interrupted() || waited >= options.timeout_seconds)
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
  std::unique_lock lock(mutex_);
  // Rank 0 enforces the timeout. If rank 0 ends, the connection closes, which also ends this wait.
  const double began = waited;
  while (!changed_.wait_for(lock, std::chrono::duration<double>(kTry), [this] { return welcome_ || failure_; })) {
    if (interrupted()) end_by({Failure::kNobody, Error(ErrorCode::timeout, "interrupted while ranks were missing")});
    waited += kTry;
    const double answer = std::min(kAnswerWithin, options.timeout_seconds);
    if (!accepted_ && waited - began >= answer)
      end_by(not_rank_0(ErrorCode::timeout, fmt::format("did not answer within {:g} s", answer)));
    if (waited > options.timeout_seconds + 5) end_by({0, Error(ErrorCode::timeout, "it did not accept this rank")});
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
  if (options.mpi && !failure_ && std::uncaught_exceptions() <= exceptions_) kernels::mpi_plugin()->finish();
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
  const auto lost = [this](const char* what) {
    const std::scoped_lock lock(mutex_);
    if (leaving_) return;
    if (accepted_ || options.rank == 0)
      end_by({0, Error(ErrorCode::device, "its process ended")});
    else
      end_by(not_rank_0(ErrorCode::device, what));
  };
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
      return lost("sent what no rank 0 sends");
    }
    if (!open) return lost("closed the connection without an answer");
  }
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
  const double patience = 2 * options.timeout_seconds + 5;
  double waited = 0;
  int put_off = put_off_;
  while (waited < patience &&
         !changed_.wait_for(lock, std::chrono::seconds(1), [&] { return failure_ || results_.contains(number); })) {
    waited = put_off == put_off_ ? waited + 1 : 0;
    put_off = put_off_;
  }
  if (waited >= patience) end_by({0, Error(ErrorCode::timeout, fmt::format("it sent nothing for {:g} s", patience))});
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
  changed_.wait_for(lock, std::chrono::seconds(1), [this] { return silent_ || failure_; });
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
