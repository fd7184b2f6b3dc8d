#include "engine/process_group/coordinator.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include "engine/base/files.h"

namespace dp::process_group {
namespace {

constexpr const char* kProtocol = "dp-world-3";
constexpr std::size_t kLongestHello = 4096;
constexpr std::ptrdiff_t kMostStrangers = 64;
constexpr std::size_t kMostRejected = 8;
// On a busy host a rank may wait ten seconds for a processor.
constexpr auto kHelloWithin = std::chrono::seconds(30);
constexpr int kTick = 100;  // milliseconds; poll timeout
constexpr auto kReportTime = std::chrono::seconds(2);
constexpr auto kAnswerWithin = std::chrono::milliseconds(500);
constexpr auto kLongestLook =
    std::chrono::seconds(1);  // longest time that counts between two polls; a longer gap is a suspension

int number(const std::string& text) {
  std::size_t used = 0;
  const int value = std::stoi(text, &used);
  if (used != text.size()) throw std::runtime_error("not a number");
  return value;
}

// Constant time: the duration does not reveal the position of the first difference.
bool same_secret(const std::string& a, const std::string& b) {
  unsigned different = a.size() != b.size();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    different |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return different == 0;
}

}  // namespace

std::string to_text(const Hello& h) {
  return join({kProtocol, h.token, std::to_string(h.rank), std::to_string(h.size), h.host, h.name});
}

Hello parse_hello(const std::string& text) {
  const std::vector<std::string> parts = split(text);
  if (parts.size() != 6 || parts[0] != kProtocol) throw std::runtime_error("a different protocol");
  return {parts[1], number(parts[2]), number(parts[3]), parts[4], parts[5]};
}

std::string to_text(const Failure& f) {
  return join({std::to_string(f.rank), std::to_string(static_cast<int>(f.error.code())), f.error.what()});
}

std::string to_sentence(const Failure& f) {
  return f.rank == Failure::kNobody ? f.error.what() : fmt::format("rank {} failed: {}", f.rank, f.error.what());
}

Failure parse_failure(const std::string& text) {
  const std::vector<std::string> parts = split(text);
  if (parts.size() != 3) throw std::runtime_error("a truncated failure report");
  const int code = std::clamp(number(parts[1]), static_cast<int>(ErrorCode::usage), static_cast<int>(ErrorCode::io));
  return {number(parts[0]), Error(static_cast<ErrorCode>(code), parts[2])};
}

Coordinator::Coordinator(FileHandle listener, const ProcessGroupOptions& options)
    : options_(options),
      patience_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.timeout_seconds))),
      join_by_(now_ + patience_),
      listener_(std::move(listener)) {
  ::fcntl(listener_.get(), F_SETFL, ::fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
  thread_ = start_thread("that serves the ranks", [this] { run(); });
}

Coordinator::~Coordinator() {
  closing_.raise();
  thread_.join();
}

void Coordinator::run() {
  ::pthread_setname_np(::pthread_self(), "coordinator");
  std::vector<pollfd> watched;
  while (!finished()) {
    watched.assign({{closing_.descriptor(), static_cast<short>(closed_ ? 0 : POLLIN), 0},
                    {listener_ ? listener_.get() : -1, POLLIN, 0}});
    for (const Guest& guest : guests_)
      watched.push_back(
          {guest.connection.descriptor(), static_cast<short>(POLLIN | (guest.connection.unsent() ? POLLOUT : 0)), 0});
    time_.poll(watched.data(), watched.size(), kTick);
    look_at_clock();
    if (watched[0].revents != 0) {
      closed_ = true;
      end_by_ = std::min(end_by_, now_ + patience_);
      if (!failure_ && !joined_.contains(0)) fail({0, Error(ErrorCode::device, "it could not join its own group")});
    }
    auto ready = watched.begin() + 2;
    for (Guest& guest : guests_) {
      const short events = (ready++)->revents;
      if (events & POLLOUT) guest.connection.flush();
      if (events & (POLLIN | POLLHUP | POLLERR)) listen_to(guest);
    }
    if (watched[1].revents != 0) let_in();
    check_deadlines();
    std::erase_if(guests_, [](const Guest& guest) { return guest.gone && !guest.connection.unsent(); });
  }
  guests_.clear();  // closes the connections: a rank that was not told of the failure notices it then
}

// Advances now_ by at most kLongestLook, so that time in which the process was suspended does not count.
void Coordinator::look_at_clock() {
  const auto before = std::exchange(looked_, time_.now());
  now_ += std::min<Clock::duration>(looked_ - before, kLongestLook);
}

bool Coordinator::finished() const {
  if (now_ >= end_by_) return true;
  return closed_ && std::all_of(guests_.begin(), guests_.end(), [](const Guest& guest) {
           return guest.gone || guest.rank < 0 || (guest.bye && !guest.connection.unsent());
         });
}

// Accepts at most kMostStrangers connections per call, so that a flood does not delay deadlines and messages. At
// kMostStrangers connections without a Hello, drops the oldest one, because a rank sends its Hello immediately. Reads
// pending input first, because all of them may have connected since the last poll.
void Coordinator::let_in() {
  const auto stranger = [](const Guest& guest) { return guest.rank < 0 && !guest.gone; };
  const auto too_many = [&] { return std::count_if(guests_.begin(), guests_.end(), stranger) >= kMostStrangers; };
  for (std::ptrdiff_t i = 0; i < kMostStrangers && listener_; ++i) {
    FileHandle file = accept_from(listener_);
    if (!file) break;
    guests_.push_back({Connection(std::move(file)), now_ + kHelloWithin});
    if (!too_many()) continue;
    for (Guest& guest : guests_)
      if (stranger(guest)) listen_to(guest);
    if (too_many()) std::find_if(guests_.begin(), guests_.end(), stranger)->gone = true;
    std::erase_if(guests_, [](const Guest& guest) { return guest.gone && !guest.connection.unsent(); });
  }
}

void Coordinator::listen_to(Guest& guest) {
  const std::size_t longest = guest.rank < 0 ? kLongestHello : kLongestPart + 64;
  const bool open = guest.connection.read(longest);
  try {
    while (!guest.gone) {
      const auto message = guest.connection.next(longest);
      if (!message) break;
      take(guest, *message);
    }
  } catch (const std::exception&) {
    lose(guest);
  }
  if (!open && !guest.gone) lose(guest);
}

void Coordinator::take(Guest& guest, const Message& message) {
  if (guest.rank < 0) {
    if (message.kind != Kind::hello) throw std::runtime_error("the first message is not a hello");
    return welcome(guest, message.body);
  }
  if (message.kind == Kind::bye) guest.bye = true;
  if (message.kind == Kind::busy) set_busy(guest, message.number != 0);
  if (message.kind == Kind::fail && !failure_) {
    guest.bye = true;  // the end of this connection is not a second failure
    fail(parse_failure(message.body));
  }
  if (failure_) return;
  if (message.kind == Kind::give) take_part(guest.rank, message);
  if (message.kind == Kind::roll) call_roll(guest.rank);
  if (message.kind == Kind::here && roll_call_ && message.number == roll_call_->number)
    roll_call_->silent.erase(guest.rank);
}

void Coordinator::take_part(int rank, const Message& message) {
  Round& round = rounds_.try_emplace(message.number, Round{{}, now_ + patience_}).first->second;
  round.parts[rank] = message.body;
  if (round.parts.size() < static_cast<std::size_t>(options_.size)) return;
  std::vector<std::string> parts;
  for (auto& [giver, part] : round.parts) parts.push_back(std::move(part));
  tell_all({Kind::everyone, message.number, join(parts)});
  rounds_.erase(message.number);
}

void Coordinator::call_roll(int asker) {
  if (!roll_call_) {
    roll_call_ = RollCall{++roll_calls_, {}, {}, now_ + kAnswerWithin};
    for (const Guest& guest : guests_)
      if (guest.rank >= 0 && !guest.gone) roll_call_->silent.insert(guest.rank);
    tell_all({Kind::roll, roll_call_->number});
  }
  roll_call_->askers.insert(asker);
}

void Coordinator::end_roll_call() {
  std::vector<std::string> silent;
  for (const int rank : roll_call_->silent) silent.push_back(std::to_string(rank));
  for (Guest& guest : guests_)
    if (roll_call_->askers.contains(guest.rank) && !guest.gone) guest.connection.send({Kind::silent, 0, join(silent)});
  roll_call_.reset();
}

void Coordinator::welcome(Guest& guest, const std::string& text) {
  const Hello hello = parse_hello(text);
  if (!same_secret(hello.token, options_.token))
    return reject(guest, hello,
                  "its token differs from rank 0's; set DP_TOKEN to the same text for every rank, or choose another "
                  "port");
  if (hello.size != options_.size)
    return reject(guest, hello,
                  fmt::format("it was started with {} ranks, rank 0 with {}; start all ranks with the same number",
                              hello.size, options_.size));
  if (hello.rank < 0 || hello.rank >= options_.size)
    return reject(guest, hello, fmt::format("rank {} does not exist; ranks count from 0", hello.rank));
  if (joined_.contains(hello.rank))
    return reject(guest, hello, fmt::format("rank {} has already joined; give each process its own rank", hello.rank));
  guest.rank = hello.rank;
  joined_[hello.rank] = text;
  if (failure_) return guest.connection.send({Kind::fail, 0, to_text(*failure_)});
  guest.connection.send({Kind::accepted});
  for (const std::string& who : rejected_) guest.connection.send({Kind::rejected, 0, who});
  if (joined_.size() < static_cast<std::size_t>(options_.size)) return;
  std::vector<std::string> hellos;
  for (const auto& [rank, one] : joined_) {
    Hello open = parse_hello(one);
    open.token.clear();
    hellos.push_back(to_text(open));
  }
  tell_all({Kind::welcome, 0, join(hellos)});
  listener_.close();  // no further ranks are expected
}

// The waiting ranks continue to wait, because anyone may connect: only a rank that is missing is reported as a failure.
void Coordinator::reject(Guest& guest, const Hello& hello, const std::string& why) {
  guest.connection.send({Kind::refused, 0, "rank 0 rejected this rank: " + why});
  guest.gone = true;
  const std::string who = fmt::format("rank 0 rejected rank {} of {} on host '{}': {}", hello.rank, hello.size,
                                      excerpt(hello.name, 64), why);
  if (rejected_.size() >= kMostRejected || !rejected_.insert(who).second) return;
  std::fprintf(stderr, "dp: warning: %s; still waiting for %s\n", who.c_str(), missing(joined_).c_str());
  tell_all({Kind::rejected, 0, who});
}

void Coordinator::lose(Guest& guest) {
  guest.gone = true;
  if (guest.rank < 0 || guest.bye || failure_) return;
  fail({guest.rank, Error(ErrorCode::device, "its process ended without an error message (was it killed?)")});
}

void Coordinator::check_deadlines() {
  for (Guest& guest : guests_)
    if (guest.rank < 0 && now_ >= guest.deadline) guest.gone = true;
  if (failure_) return;
  if (roll_call_ && (roll_call_->silent.empty() || now_ >= roll_call_->deadline)) end_roll_call();
  if (joined_.size() < static_cast<std::size_t>(options_.size) && now_ >= join_by_)
    return fail(
        {Failure::kNobody,
         Error(ErrorCode::timeout,
               fmt::format("{} did not join within {:g} s{}; check that all ranks were started, or raise --timeout",
                           missing(joined_), options_.timeout_seconds,
                           rejected_.empty() ? "" : fmt::format(" ({})", fmt::join(rejected_, "; "))))});
  for (auto& [number, round] : rounds_) {
    if (now_ < round.deadline) continue;
    if (!only_busy_ones_miss(round))
      return fail({Failure::kNobody,
                   Error(ErrorCode::timeout, fmt::format("{} did not reach exchange {} within {:g} s",
                                                         missing(round.parts), number, options_.timeout_seconds))});
    put_off(round);
  }
}

// Time that a rank was busy does not count towards the timeout of its next exchange.
void Coordinator::set_busy(Guest& guest, bool busy) {
  guest.busy = busy;
  if (busy || failure_) return;
  for (auto& [number, round] : rounds_)
    if (!round.parts.contains(guest.rank)) put_off(round);
}

void Coordinator::put_off(Round& round) {
  round.deadline = now_ + patience_;
  tell_all({Kind::busy});
}

bool Coordinator::only_busy_ones_miss(const Round& round) const {
  for (int rank = 0; rank < options_.size; ++rank) {
    const auto is_busy = [&](const Guest& guest) { return guest.rank == rank && guest.busy && !guest.gone; };
    // Ranks that have left are not in guests_, so they count as missing.
    if (!round.parts.contains(rank) && std::none_of(guests_.begin(), guests_.end(), is_busy)) return false;
  }
  return true;
}

std::string Coordinator::missing(const std::map<int, std::string>& there) const {
  std::string names;
  int count = 0;
  for (int rank = 0; rank < options_.size; ++rank)
    if (!there.contains(rank)) names += (count++ ? ", " : "") + std::to_string(rank);
  return fmt::format("{} {} of {}", count == 1 ? "rank" : "ranks", names, options_.size);
}

void Coordinator::fail(const Failure& failure) {
  failure_ = failure;
  end_by_ = std::min(end_by_, now_ + kReportTime);
  tell_all({Kind::fail, 0, to_text(failure)});
}

void Coordinator::tell_all(const Message& message) {
  for (Guest& guest : guests_)
    if (guest.rank >= 0 && !guest.gone) guest.connection.send(message);
}

}  // namespace dp::process_group
